"""A round of all methods for each question."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from moa_shared.drafter.companion.loading import find_companion, load_companion
from moa_shared.errors import DataError
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.sources.generation import asked_sampling
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from moa_bench.harness.cores import on_cores
from moa_bench.harness.oracle import has_no_drafter
from moa_bench.harness.prompts import chat_tokens
from moa_bench.harness.questions import BenchQuestion, read_all
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.single import SingleEffort
from moa_bench.suites.single.figures import SERVER
from moa_bench.suites.single.methods import (
    SERVED,
    AskLocally,
    Oracles,
    load_drafters,
    load_engine,
    methods_of,
    missing_drafters,
    split_companions,
)
from moa_bench.suites.single.peers import find_peers, running_peers, streaming_server
from moa_bench.suites.single.rounds import Ask, MethodAnswer, ask_round

WARM_UP_TOKENS = 8


def measure(effort: SingleEffort, run: SuiteRun) -> Result:
    """The rounds; each is a cell."""
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    tokenizer = load_tokenizer(files)
    asked = read_all(run.questions)
    prompts = {question.text: chat_tokens(tokenizer, question.text) for question in asked}
    chosen = choose(asked, prompts, effort.asked, effort.longest_prompt)
    checkpoints, models = split_companions(run.drafters)
    given = load_drafters(files, checkpoints)
    companions = {name: find_companion(model, progress=progress) for name, model in models.items()}
    has_oracles = has_no_drafter(files, run.drafters)
    missing = {} if has_oracles else dict.fromkeys(missing_drafters(given), "no checkpoint is given (--drafter)")
    sampling = asked_sampling(effort.temperature, files)
    found, absent = find_peers(files, run.llama_cpp, next(iter(companions.values()), None), is_sized=bool(run.shape))
    if sampling != Sampling():  # their noise is another, so what they write costs something else
        found, absent = [], absent | {peer.name: "it is measured greedy" for peer in found}
    with ExitStack() as stack:
        stack.enter_context(on_cores(run.server_cores))
        engine = load_engine(files, run.level, progress, sampling)
        if has_oracles:
            local = Oracles(engine, effort).methods()
        else:
            loaded = {name: load_companion(each, files, progress=progress) for name, each in companions.items()}
            local = methods_of(engine, files, given, effort, loaded)
        exact: dict[str, Ask] = {name: partial(ask_locally, ask, sampling) for name, ask in local.items()}
        exact[SERVER], server = stack.enter_context(
            streaming_server(run.model, run.level, run.server_cores, run.own_cores, sampling)
        )
        others, workers = stack.enter_context(running_peers(found, run.server_cores, progress))
        used = {SERVER: server.cpu_s} | {name: workers[name].cpu_s for name in others}

        def cpu_s(method: str) -> float:
            """Processor time of the process that answers in this way, so far."""
            return used.get(method, time.process_time)()

        _warm_up(exact, others, prompts[chosen[0].text])
        rounds = []
        with progress.task("Questions", len(chosen)) as task:
            for number, question in enumerate(chosen):
                ask = partial(
                    ask_round,
                    exact,
                    others,
                    prompts[question.text],
                    cpu_s,
                    most=effort.answer_tokens,
                    least=effort.shortest_answer,
                    turn=number,
                )
                rounds.append(run.keep(f"{number} {question.category}", ask) | {"category": question.category})
                task.advance(1)
    return {
        "target": files.target_id,
        "drafters": {name: checkpoint.fingerprint for name, checkpoint in given.items()},
        "rounds": rounds,
        "peers": [SERVER, *others],
        "own_text": list(others),
        "served": next((name for name in local if name.endswith(f": {SERVED}")), ""),
        "details": {worker.subject.name: worker.details for worker in workers.values()},
        "missing": missing | absent,
    }


def choose(
    questions: Sequence[BenchQuestion], prompts: Mapping[str, Sequence[int]], count: int, longest: int
) -> list[BenchQuestion]:
    """The first `count` questions of each category whose prompts have at most `longest` tokens, in turn.

    Args:
        prompts: tokens by text.
    """
    found: dict[str, list[BenchQuestion]] = {}
    for question in questions:
        of_category = found.setdefault(question.category, [])
        if len(of_category) < count and len(prompts[question.text]) <= longest:
            of_category.append(question)
    chosen = [each for turn in range(count) for of_category in found.values() for each in of_category[turn : turn + 1]]
    if not chosen:
        raise DataError(f"No question has at most {longest} tokens.", hint="Name others with --questions.")
    return chosen


def ask_locally(ask: AskLocally, sampling: Sampling, prompt: Sequence[int], most: int) -> MethodAnswer:
    """An answer of a method in this process."""
    return MethodAnswer.local(ask(prompt, AnswerSettings(sampling, max_tokens=most)))


def _warm_up(exact: Mapping[str, Ask], others: Mapping[str, Ask], prompt: Sequence[int]) -> None:
    """First calls set up kernels, caches and connections."""
    for ask in (*exact.values(), *others.values()):
        ask(prompt, WARM_UP_TOKENS)
