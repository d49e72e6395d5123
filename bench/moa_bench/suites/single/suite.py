"""`moa-bench single`: all ways to draft on one device, and what a user would run instead, question by question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.report.experiment import Experiment
from moa_bench.report.journal import Keep, measure_afresh
from moa_bench.report.report import SINGLE
from moa_bench.suites.single import tables
from moa_bench.suites.single.effort import QUICK, SingleEffort
from moa_bench.suites.single.peers.names import SERVER
from moa_bench.suites.single.rounds import Answer, Ask, ask_round

if TYPE_CHECKING:
    from moa_bench.suites.single.methods import AskLocally

CATEGORIES = 7  # of the questions that are usually asked
LOADING_S = 40.0
TOKEN_S = 0.6  # of all methods together, with transformers on two levels, on a core of 2.1 GHz
WARM_UP_TOKENS = 8


def estimate_s(effort: SingleEffort) -> float:
    """About how many seconds it takes, with the shipped drafters and the default model."""
    return LOADING_S + CATEGORIES * effort.questions * effort.answer_tokens * TOKEN_S


def run_single(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    drafters: Mapping[str, Path],
    questions: Path | None = None,
    assistant: str | None = None,
    peers: bool = True,
) -> None:
    """Measure and report; the picture goes to docs/img of the checkout, if the results do.

    Args:
        level: of moa's arithmetic.
        drafters: checkpoints by name; none: those that come with the package.
        questions: a file or folder as `read_questions` takes it; None: the bench's own.
        assistant: a smaller model for transformers' assisted generation; None: it is left out.
        peers: whether to run transformers and llama.cpp too.

    Raises:
        MoaError: a drafter or questions that cannot be used, or a program that fails.
    """
    effort = QUICK if quick else SingleEffort()
    experiment = Experiment("single", quick=quick, json_file=json_file, pin=pin)
    make_progress().note(f"This takes about {estimate_s(effort) / 60:.0f} minutes.")
    experiment.result |= measure(
        effort,
        measure_afresh,
        model=model,
        level=level,
        drafters=drafters,
        questions=questions,
        assistant=assistant,
        peers=peers,
        cores=(experiment.server_cores, experiment.own_cores),
    )
    experiment.publish(render(experiment.result), page=SINGLE)
    if (picture := experiment.picture_path("single")) is not None:
        for path in draw(experiment.result, picture.parent):
            click.echo(path)


def render(result: Mapping[str, Any]) -> str:
    """Markdown tables of a result, which holds the machine's facts too."""
    return tables.render(result)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Pictures of a result; raises ConfigError where matplotlib is missing or a file cannot be written."""
    from moa_bench.suites.single import picture

    return picture.draw(result, folder)


def measure(
    effort: SingleEffort,
    keep: Keep,
    *,
    model: str = "default",
    level: str = INT8,
    drafters: Mapping[str, Path] | None = None,
    questions: Path | None = None,
    assistant: str | None = None,
    peers: bool = True,
    cores: tuple[set[int] | None, set[int] | None] = (None, None),
) -> dict[str, Any]:
    """A round of all methods for each question.

    Args:
        keep: takes the key of a round, and what measures it.
        cores: of whatever answers, and of the client that streams; None: any.

    Raises:
        MoaError: as `run_single`.
    """
    from moa_shared.models import load_tokenizer, resolve
    from moa_shared.models.sources.cache import cache_root

    from moa_bench.harness.prompts import chat_tokens
    from moa_bench.suites.single.methods import SERVED, load_drafters, load_engine, methods_of, missing_drafters
    from moa_bench.suites.single.peers.peers import find_peers, running_peers, streaming_server
    from moa_bench.suites.single.questions import choose, own_questions, read_categories

    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    asked = own_questions() if questions is None else read_categories(questions)
    prompts = {question.text: chat_tokens(tokenizer, question.text) for question in asked}
    chosen = choose(asked, prompts, effort.questions, effort.longest_prompt)
    given = load_drafters(files, drafters or {})
    missing = dict.fromkeys(missing_drafters(given), "no checkpoint is given (--drafter)")
    found, absent = find_peers(model, files, cache_root(), assistant) if peers else ([], {"peers": "left out"})
    answer_cores, own_cores = cores
    with ExitStack() as stack:
        stack.enter_context(on_cores(answer_cores))
        local = methods_of(load_engine(files, level, progress), files, given, effort)
        exact: dict[str, Ask] = {name: partial(ask_locally, ask) for name, ask in local.items()}
        exact[SERVER] = stack.enter_context(streaming_server(model, level, answer_cores, own_cores))
        others, details = stack.enter_context(running_peers(found, answer_cores, progress))
        _warm_up(exact, others, prompts[chosen[0].text])
        rounds = []
        with progress.task("Questions", len(chosen)) as task:
            for number, question in enumerate(chosen):
                ask = partial(
                    ask_round,
                    exact,
                    others,
                    prompts[question.text],
                    most=effort.answer_tokens,
                    least=effort.shortest_answer,
                    turn=number,
                )
                rounds.append(keep(f"{number} {question.category}", ask) | {"category": question.category})
                task.advance(1)
    return {
        "target": files.target_id,
        "level": level,
        "effort": asdict(effort),
        "drafters": {name: checkpoint.fingerprint for name, checkpoint in given.items()},
        "rounds": rounds,
        "peers": [SERVER, *others],
        "own_text": list(others),
        "served": next((name for name in local if name.endswith(f": {SERVED}")), ""),
        "details": details,
        "missing": missing | absent,
    }


def ask_locally(ask: AskLocally, prompt: Sequence[int], most: int) -> Answer:
    """An answer of a method in this process."""
    return Answer.local(ask(prompt, AnswerSettings(max_tokens=most)))


def _warm_up(exact: Mapping[str, Ask], others: Mapping[str, Ask], prompt: Sequence[int]) -> None:
    """First calls set up kernels, caches and connections."""
    for ask in (*exact.values(), *others.values()):
        ask(prompt, WARM_UP_TOKENS)
