"""One question after the other, asked of all methods in turn; plain serving answers it first and last.

llama.cpp is in a process of its own, on the cores of the target. A round is JSON.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.files import asked_sampling
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Sampling

from moa_bench.harness.child import Child, WorkerProcess, running_server, running_workers
from moa_bench.harness.oracle import has_no_drafter
from moa_bench.harness.questions import BenchQuestion, chat_tokens, read_all
from moa_bench.harness.split_client import PlainClient, common_tokens
from moa_bench.machine import on_cores, rotated, without_collector
from moa_bench.registry import LLAMA_CPP, SingleEffort
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine import llama_subject
from moa_bench.suites.single.methods import (
    SERVED,
    Ask,
    MethodAnswer,
    load_drafters,
    load_engine,
    methods_of,
    oracle_methods,
)
from moa_bench.suites.single.tables import MODES, PLAIN, SERVER, render

__all__ = ["measure", "render"]
WARM_UP_TOKENS = 8


def measure(effort: SingleEffort, run: SuiteRun) -> Result:
    """The rounds; each is a cell."""
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    tokenizer = load_tokenizer(files)
    asked = read_all(run.questions)
    prompts = {question.text: chat_tokens(tokenizer, question.text) for question in asked}
    chosen = choose(asked, prompts, effort.asked, effort.longest_prompt)
    given = load_drafters(files, run.drafters)
    has_oracles = has_no_drafter(files, run.drafters)
    sampling = asked_sampling(effort.temperature, files)
    is_greedy = sampling == Sampling()  # else peers' noise is another, so what they write costs something else
    folder = run.llama_cpp if is_greedy else None
    why = "--llama-cpp names no folder with node-llama-cpp" if is_greedy else "it is measured greedy"
    with ExitStack() as stack:
        stack.enter_context(on_cores(run.server_cores))
        engine = load_engine(files, run.level, progress, sampling)
        exact = oracle_methods(engine, effort) if has_oracles else methods_of(engine, files, given, effort)
        served = next((name for name in exact if name.endswith(f": {SERVED}")), "")
        exact[SERVER], server = stack.enter_context(streaming_server(run, sampling))
        others, peer = stack.enter_context(running_peers(files, folder, run.server_cores, progress))
        used = {SERVER: server.cpu_s} | ({} if peer is None else dict.fromkeys(others, peer.cpu_s))

        def cpu_s(method: str) -> float:
            """Processor time of the process that answers in this way, so far."""
            return used.get(method, time.process_time)()

        for ask in (*exact.values(), *others.values()):  # first calls set up kernels, caches and connections
            ask(prompts[chosen[0].text], WARM_UP_TOKENS)
        rounds = []
        with progress.task("Questions", len(chosen)) as task:
            for number, question in enumerate(chosen):
                prompt, most, least = prompts[question.text], effort.answer_tokens, effort.shortest_answer
                asking = partial(ask_round, exact, others, prompt, cpu_s, most=most, least=least, turn=number)
                rounds.append(run.keep(f"{number} {question.category}", asking) | {"category": question.category})
                task.advance(1)
    return {
        "target": files.target_id,
        "drafters": {name: checkpoint.fingerprint for name, checkpoint in given.items()},
        "rounds": rounds,
        "peers": [SERVER, *others],
        "own_text": list(others),
        "served": served,
        "details": {} if peer is None else {LLAMA_CPP: peer.details},
        "missing": {} if peer is not None else {LLAMA_CPP: why},
    }


def choose(
    questions: Sequence[BenchQuestion], prompts: Mapping[str, Sequence[int]], count: int, longest: int
) -> list[BenchQuestion]:
    """The first `count` questions of each category whose prompts have at most `longest` tokens, in turn."""
    found: dict[str, list[BenchQuestion]] = {}
    for question in questions:
        of_category = found.setdefault(question.category, [])
        if len(of_category) < count and len(prompts[question.text]) <= longest:
            of_category.append(question)
    chosen = [each for turn in range(count) for of_category in found.values() for each in of_category[turn : turn + 1]]
    if not chosen:
        raise DataError(f"No question has at most {longest} tokens.", hint="Name others with --questions.")
    return chosen


def ask_round(
    exact: Mapping[str, Ask],
    others: Mapping[str, Ask],
    prompt: Sequence[int],
    cpu_s: Callable[[str], float],
    *,
    most: int,
    least: int,
    turn: int = 0,
) -> dict[str, Any]:
    """The answers of all methods to one question; only plain serving's if that has less than `least` tokens.

    Args:
        exact: methods that promise plain serving's text, among them PLAIN.
        others: those with a text of their own, which are given the number of tokens of plain serving's.
        cpu_s: processor time of the process that answers in a way, so far.
        turn: which of the methods begins after plain serving.

    Returns:
        {"prompt_tokens", "tokens", "short", "answers": {method: [what each answer took]}}.
    """

    def ask(name: str, count: int) -> MethodAnswer:
        before_s = cpu_s(name)
        answer = {**exact, **others}[name](prompt, count)
        return replace(answer, cpu_s=cpu_s(name) - before_s)

    with without_collector():
        first = ask(PLAIN, most)
        count = len(first.tokens)
        short = count < max(2, least)
        taken = {PLAIN: [_cell(first, first.tokens)]}
        if not short:
            for name in rotated([name for name in (*exact, *others) if name != PLAIN], turn):
                taken[name] = [_cell(ask(name, most if name in exact else count), first.tokens)]
            taken[PLAIN].append(_cell(ask(PLAIN, most), first.tokens))
    return {"prompt_tokens": len(prompt), "tokens": count, "short": short, "answers": taken}


def _cell(answer: MethodAnswer, reference: Sequence[int]) -> dict[str, Any]:
    """What an answer took; in place of its tokens their number, and how many first ones are plain serving's."""
    common = common_tokens(answer.tokens, reference)
    same = len(answer.tokens) == len(reference) == common
    fields = asdict(answer) | {"tokens": len(answer.tokens), "common": common, "same": same}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}


@contextmanager
def running_peers(
    files: ModelFiles, llama_cpp: Path | None, cores: set[int] | None, progress: Progress
) -> Iterator[tuple[dict[str, Ask], WorkerProcess | None]]:
    """What asks llama.cpp in each of its modes, by its name in tables, and its process; nothing without its folder."""
    if llama_cpp is None:
        yield {}, None
        return
    with running_workers([llama_subject(llama_cpp, files)], cores, progress) as (worker,):
        yield {f"{LLAMA_CPP}{said}": partial(ask_peer, worker.ask, mode) for mode, said in MODES.items()}, worker


def ask_peer(
    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]], mode: str, prompt: Sequence[int], count: int
) -> MethodAnswer:
    said = ask({"ask": list(prompt), "count": count, "mode": mode})
    tokens, arrivals = tuple(said["tokens"]), said["arrivals_ms"]
    if len(tokens) != count or len(arrivals) != count:
        words = f"A peer was asked for {count} tokens and gave {len(tokens)}, with {len(arrivals)} times."
        raise DataError(words, hint="Measure without it, and report this.")
    return MethodAnswer(tokens, arrivals[0], arrivals[-1] - arrivals[0])


@contextmanager
def streaming_server(run: SuiteRun, sampling: Sampling) -> Iterator[tuple[Ask, Child]]:
    """`moa-server serve` without drafts, asked as a user's program would."""
    with running_server(run.model, level=run.level, drafter="none", cores=run.server_cores) as server:
        with on_cores(run.own_cores):
            client = PlainClient(server.address)

        def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
            with on_cores(run.own_cores):
                answer = client.ask(prompt, AnswerSettings(sampling, max_tokens=most))
            return MethodAnswer(answer.tokens, answer.first_ms, 1e3 * answer.arrivals_s[-1] - answer.first_ms)

        try:
            yield ask, server
        finally:
            client.close()
