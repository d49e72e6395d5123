"""`moa-bench split`: all ways to draft over links, with every drafter, question by question."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
from moa_shared.drafter.checkpoint.shipped import DEFAULT_DRAFTER
from moa_shared.errors import ConfigError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.levels import INT8

from moa_bench.harness.answers import AnswerClient
from moa_bench.harness.cores import on_cores
from moa_bench.harness.cpu import process_cpu_s
from moa_bench.harness.recorded import recorded_link
from moa_bench.harness.servers import running_server
from moa_bench.report.experiment import Experiment
from moa_bench.report.journal import Keep, measure_afresh
from moa_bench.report.report import SPLIT
from moa_bench.suites.split import tables
from moa_bench.suites.split.effort import LINKS, QUICK, SplitEffort

LOADING_S = 60.0
ANSWER_S = 2.5  # of 64 tokens, on average over links and methods
SHIPPED = {"MoA, N = 3": "default", "MoA, N = 12": "deep"}
METHODS = 3, 4  # of each drafter, and plain streaming twice, the server's drafts, everything on


def estimate_s(effort: SplitEffort, drafters: int = len(SHIPPED), recordings: int = 0) -> float:
    """About how many seconds it takes with the default model."""
    answers = METHODS[0] * drafters + METHODS[1]
    links = len(effort.links) + recordings
    return LOADING_S + links * effort.questions * answers * ANSWER_S * effort.answer_tokens / 64


def run_split(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    drafters: Mapping[str, Path],
    links: tuple[str, ...] = (),
    traces: tuple[str, ...] = (),
    questions: Path | None = None,
    acceptances: tuple[float, ...] = (),
) -> None:
    """Measure and report.

    Args:
        drafters: further checkpoints by name.
        links: only these; none: all of `SplitEffort`.
        traces: recorded links besides, as `recorded_link` takes them.
        questions: a file or folder of questions; None: the bench's own.
        acceptances: of oracles that take the drafters' place, for a model of random weights; none: there are none.

    Raises:
        MoaError: an unknown link, a drafter that cannot be used, or a server, link or plain streaming that fails.
    """
    effort = QUICK if quick else SplitEffort()
    if links:
        effort = replace(effort, links=links)
    name = _name(acceptances)
    experiment = Experiment(name, quick=quick, json_file=json_file, pin=pin)
    if not acceptances:  # else it depends on the size
        minutes = estimate_s(effort, len(SHIPPED | dict(drafters)), len(traces)) / 60
        make_progress().note(f"This takes about {minutes:.0f} minutes.")
    cores = experiment.server_cores, experiment.own_cores
    experiment.result |= measure(
        effort,
        measure_afresh,
        model=model,
        level=level,
        drafters=drafters,
        traces=traces,
        questions=questions,
        cores=cores,
        acceptances=acceptances,
    )
    experiment.publish(render(experiment.result), page=SPLIT)
    if (picture := experiment.picture_path(name)) is not None:
        for path in draw(experiment.result, picture.parent):
            click.echo(path)


def _name(acceptances: tuple[float, ...]) -> str:
    return tables.ORACLES if acceptances else "split"


def render(result: Mapping[str, Any]) -> str:
    """Markdown tables of a result, which holds the machine's facts too."""
    return tables.render(result)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Pictures of a result; raises ConfigError where matplotlib is missing or a file cannot be written."""
    from moa_bench.suites.split import picture

    return picture.draw(result, folder)


def measure(
    effort: SplitEffort,
    keep: Keep,
    *,
    model: str = "default",
    level: str = INT8,
    drafters: Mapping[str, Path] | None = None,
    traces: tuple[str, ...] = (),
    questions: Path | None = None,
    cores: tuple[set[int] | None, set[int] | None] = (None, None),
    acceptances: tuple[float, ...] = (),
) -> dict[str, Any]:
    """A round of all methods for each link and question.

    Args:
        keep: takes the key of a round, and what measures it.
        cores: of the servers, and of client and links; None: any.

    Raises:
        MoaError: as `run_split`.
    """
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.drafters import UNTRAINED, both_ends, find_drafter
    from moa_bench.harness.prompts import QUESTIONS, chat_tokens
    from moa_bench.harness.questions import read_all
    from moa_bench.harness.split_client import client_settings, load_split_device
    from moa_bench.suites.split.methods import Devices, methods_of, reaching, serving_all
    from moa_bench.suites.split.oracles import DRAFT_MS, OracleDevices, oracle_methods, oracle_name
    from moa_bench.suites.split.rounds import ask_round

    if unknown := [name for name in effort.links if name not in LINKS]:
        raise ConfigError(f"There is no link {unknown[0]!r}.", hint=f"There are {', '.join(LINKS)}.")
    links = [LINKS[name] for name in effort.links] + [recorded_link(trace, LINKS.values()) for trace in traces]
    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    texts = QUESTIONS if questions is None else [each.turns[0] for each in read_all(questions)]
    asked = (prompt for text in texts if len(prompt := chat_tokens(tokenizer, text)) <= effort.longest_prompt)
    prompts = list(islice(asked, effort.questions))
    named = (
        {UNTRAINED: DEFAULT_DRAFTER}
        if acceptances
        else SHIPPED | {name: str(path) for name, path in (drafters or {}).items()}
    )
    measured = {name: find_drafter(files, given) for name, given in named.items()}
    server_cores, own_cores = cores
    serve = partial(running_server, model, level=level, cores=server_cores)
    rounds = []
    with ExitStack() as stack:
        stack.enter_context(on_cores(own_cores))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        runner = stack.enter_context(make_runner())
        ends = {name: both_ends(named[name], each, folder) for name, each in measured.items()}
        clients = {name: own for name, (_, own) in ends.items()}
        servers = stack.enter_context(serving_all({name: served for name, (served, _) in ends.items()}, serve))
        client: Callable[..., AbstractContextManager[AnswerClient]]
        if acceptances:
            methods = oracle_methods(UNTRAINED, acceptances, effort.chain)
            address = servers[UNTRAINED].address
            program = client_settings(server=address, model=model, drafter=clients[UNTRAINED], mode="chain")
            held = load_split_device(runner, program)
            client = OracleDevices(runner, address, held, effort.answer_tokens, effort.chain).client
        else:
            methods = methods_of(clients, effort.chain)
            client = Devices(runner, model, methods, clients, servers).client
        serving = {method.name: servers[method.drafter].process.pid for method in methods}
        with progress.task("Questions", len(links) * len(prompts)) as task:
            for link in links:
                with reaching(link, servers, own_cores) as reach:
                    for number, prompt in enumerate(prompts):
                        way = partial(reach, share=number / len(prompts))
                        ask = partial(
                            ask_round,
                            {each.name: partial(client, each, prompt, way) for each in methods},
                            prompt,
                            effort.answer_tokens,
                            lambda method: process_cpu_s(serving[method]),
                            number,
                        )
                        rounds.append(keep(f"{link.name} {number}", ask) | {"link": link.name})
                        task.advance(1)
    return {
        "name": _name(acceptances),
        "target": files.target_id,
        "level": level,
        "effort": asdict(effort),
        "drafters": {oracle_name(each): f"right at that rate, {DRAFT_MS:g} ms a draft step" for each in acceptances}
        or {name: each.description for name, each in measured.items()},
        "links": {each.name: {"rtt_ms": each.rtt_ms, "recorded": each.recording is not None} for each in links},
        "rounds": rounds,
    }
