"""A round of all methods for each link and question."""

import tempfile
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path

from moa_server.verifier.startup_check import measure_times
from moa_shared.drafter.checkpoint.shipped import DEFAULT_DRAFTER, shipped_drafter
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.sources.generation import asked_sampling
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import PlainClient
from moa_bench.harness.child import running_server
from moa_bench.harness.cores import on_cores
from moa_bench.harness.drafters import UNTRAINED, both_ends, find_drafter
from moa_bench.harness.links import find_links
from moa_bench.harness.oracle import DRAFT_MS, has_no_drafter
from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.recorded import recorded_link
from moa_bench.harness.split_client import describe
from moa_bench.harness.targets import load_level
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.split import SplitEffort
from moa_bench.suites.split.methods import Devices, methods_of, oracle_methods, reaching
from moa_bench.suites.split.rounds import ask_round

WARM_UP_TOKENS = 8
SHIPPED = {"MoA, N = 3": "default", "MoA, N = 12": "deep"}


def measure(effort: SplitEffort, run: SuiteRun) -> Result:
    """The rounds; each is a cell."""
    links = [*find_links(effort.links), *(recorded_link(trace) for trace in run.traces)]
    files = resolve(run.model, progress=make_progress())
    tokenizer = load_tokenizer(files)
    asked = (chat_tokens(tokenizer, text) for text in questions_of(run.questions))
    prompts = list(islice((prompt for prompt in asked if len(prompt) <= effort.longest_prompt), effort.asked))
    sampling = asked_sampling(effort.temperature, files)
    settings = AnswerSettings(sampling, max_tokens=effort.answer_tokens, ignore_end_of_text=True)
    has_oracles = has_no_drafter(files, run.drafters)
    if has_oracles:
        named, methods = {UNTRAINED: DEFAULT_DRAFTER}, oracle_methods(UNTRAINED, effort.acceptances)
    else:
        shipped = SHIPPED if shipped_drafter(files.fingerprint) is not None else {}
        named = shipped | {name: str(path) for name, path in run.drafters.items()}
        methods = methods_of(list(named))
    measured = {name: find_drafter(files, given) for name, given in named.items()}
    rounds = []
    with ExitStack() as stack:
        stack.enter_context(on_cores(run.own_cores))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        runner = stack.enter_context(make_runner())
        servers, clients = {}, {}
        for name, drafter in measured.items():
            served, clients[name] = both_ends(named[name], drafter, folder)
            servers[name] = stack.enter_context(
                running_server(run.model, level=run.level, cores=run.server_cores, drafter=served)
            )
        for server in servers.values():
            with closing(PlainClient(server.address)) as client:  # first forwards set up kernels and caches
                client.ask(prompts[0], AnswerSettings(max_tokens=WARM_UP_TOKENS))
        devices = Devices(runner, run.model, methods, clients, servers, effort, settings)
        serving = {method.name: servers[method.drafter] for method in methods}
        task = stack.enter_context(make_progress().task("Questions", len(links) * len(prompts)))
        for link in links:
            with reaching(link, servers, run.own_cores) as reach:
                for number, prompt in enumerate(prompts):
                    way = partial(reach, share=number / len(prompts))
                    ask = partial(
                        ask_round,
                        {each.name: partial(devices.client, each, prompt, way) for each in methods},
                        prompt,
                        settings,
                        lambda method: serving[method].cpu_s(),
                        number,
                    )
                    rounds.append(run.keep(f"{link.name} {number}", ask) | {"link": link.name})
                    task.advance(1)
        first = runner.run(describe(next(iter(servers.values())).address))
    costs = {"step_ms": round(first.step_ms, 3), "times": row_times(files, run)}
    drafters = {name: each.description for name, each in measured.items()}
    if has_oracles:
        said = f"right at that rate, {DRAFT_MS:g} ms a draft step"
        drafters = {name: said for name in dict.fromkeys(each.name.rpartition(": ")[0] for each in methods) if name}
    return {
        "target": files.target_id,
        "has_oracles": has_oracles,
        "costs": costs,
        "drafters": drafters,
        "links": {each.name: {"rtt_ms": each.rtt_ms, "recorded": each.recording is not None} for each in links},
        "rounds": rounds,
    }


def row_times(files: ModelFiles, run: SuiteRun) -> list[tuple[int, float]]:
    """What forwards with several rows take: each number of rows, and milliseconds."""
    with on_cores(run.server_cores):
        execution = load_level(files, run.level, make_progress())
        test = execution.test or measure_times(execution.target)
    return [(rows, round(ms, 3)) for rows, ms in test.times]
