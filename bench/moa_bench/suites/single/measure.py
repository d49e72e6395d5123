"""One question after the other, asked of all methods in turn; plain serving answers it first and last.

What a user would run instead is in a process of its own, on the cores of the target. A round is JSON.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moa_shared.drafter.companion.loading import find_companion, load_companion
from moa_shared.errors import DataError
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.sources.generation import asked_sampling
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from moa_bench.harness.child import Child, WorkerCommand, WorkerProcess, running_server, running_workers
from moa_bench.harness.oracle import has_no_drafter
from moa_bench.harness.questions import BenchQuestion, chat_tokens, read_all
from moa_bench.harness.split_client import PlainClient, TimedAnswer, common_tokens
from moa_bench.machine import on_cores
from moa_bench.registry import LLAMA_CPP, SingleEffort
from moa_bench.spread import rotated, without_collector
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine.measure import llama_subject
from moa_bench.suites.single.local_server import LocalAnswer
from moa_bench.suites.single.methods import (
    SERVED,
    AskLocally,
    load_drafters,
    load_engine,
    methods_of,
    missing_drafters,
    oracle_methods,
    split_companions,
)
from moa_bench.suites.single.tables import DRAFT_MODE, MODES, PLAIN, SERVER, TRANSFORMERS, render

__all__ = ["measure", "render"]
WARM_UP_TOKENS = 8
WORKER = "moa_bench.suites.single.transformers_worker"


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """An answer and what it took."""

    tokens: tuple[int, ...]
    first_ms: float  # from the question to the first token
    steady_ms: float  # from there to the last
    forwards: int | None = None  # after the first token; None: the method does not say
    nodes: int | None = None  # verified in them
    cpu_s: float = 0.0  # of the process that answered, its reading of the prompt included

    @classmethod
    def local(cls, answer: LocalAnswer) -> "MethodAnswer":
        steady_ms = sum(step.forward_ms + step.drafting_ms for step in answer.steps)
        nodes = sum(step.nodes for step in answer.steps)
        return cls(answer.tokens, answer.reading_ms, steady_ms, len(answer.steps), nodes)

    @classmethod
    def timed(cls, answer: TimedAnswer) -> "MethodAnswer":
        """Of one that was watched as it came."""
        return cls(answer.tokens, answer.first_ms, 1e3 * answer.arrivals_s[-1] - answer.first_ms)


Ask = Callable[[Sequence[int], int], MethodAnswer]  # the prompt's tokens, and how many new ones at most


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
            local = oracle_methods(engine, effort)
        else:
            loaded = {name: load_companion(each, files, progress=progress) for name, each in companions.items()}
            local = methods_of(engine, files, given, effort, loaded)
        exact: dict[str, Ask] = {name: partial(ask_locally, ask, sampling) for name, ask in local.items()}
        exact[SERVER], server = stack.enter_context(streaming_server(run, sampling))
        others, workers = stack.enter_context(running_peers(found, run.server_cores, progress))
        used = {SERVER: server.cpu_s} | {name: workers[name].cpu_s for name in others}

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
    """The answers of all methods to one question; only plain serving's if that is short.

    Args:
        exact: methods that promise plain serving's text, among them PLAIN.
        others: those with a text of their own, which are given the number of tokens of plain serving's.
        cpu_s: processor time of the process that answers in a way, so far.
        most: tokens of an answer; `least`: of one whose question is asked of all.
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


def find_peers(
    files: ModelFiles, llama_cpp: Path | None, draft: ModelFiles | None, *, is_sized: bool
) -> tuple[list[WorkerCommand], dict[str, str]]:
    """llama.cpp and transformers, where they are there; of what is missing, why.

    Args:
        draft: a smaller model of the same tokens, for the draft mode; None: there is none.
        is_sized: the target has random weights, and the size of real ones.
    """
    peers: list[WorkerCommand] = []
    missing: dict[str, str] = {}
    smaller = [] if draft is None else [str(draft.weights[0])]
    if llama_cpp is None:
        missing[LLAMA_CPP] = "--llama-cpp names no folder with node-llama-cpp"
    else:
        peers.append(llama_subject(llama_cpp, files, *smaller))
    if is_sized:
        missing[TRANSFORMERS] = "it unpacks the weights into bfloat16, which takes more than three times their memory"
    elif not (find_spec("torch") and find_spec("transformers")):
        missing[TRANSFORMERS] = "torch or transformers is not installed"
    else:
        command = (sys.executable, "-P", "-m", WORKER, "--model", str(files.weights[0]))
        peers.append(WorkerCommand(TRANSFORMERS, (*command, *(["--assistant", *smaller] if smaller else []))))
    if not smaller:
        for peer in peers:
            missing[f"{peer.name}{DRAFT_MODE}"] = "no smaller model is named (--drafter NAME=companion:MODEL)"
    return peers, missing


@contextmanager
def running_peers(
    peers: Sequence[WorkerCommand], cores: set[int] | None, progress: Progress
) -> Iterator[tuple[dict[str, Ask], dict[str, WorkerProcess]]]:
    """All of them, loaded: what asks each by its name in tables, and the process that answers then."""
    with running_workers(peers, cores, progress) as workers:
        asked = {
            f"{worker.subject.name}{said}": (mode, worker)
            for worker in workers
            for mode, said in MODES.items()
            if mode in worker.modes
        }
        asks: dict[str, Ask] = {name: partial(ask_peer, worker.ask, mode) for name, (mode, worker) in asked.items()}
        yield asks, {name: worker for name, (_, worker) in asked.items()}


def ask_peer(
    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]], mode: str, prompt: Sequence[int], count: int
) -> MethodAnswer:
    """A peer's answer of `count` tokens."""
    said = ask({"ask": list(prompt), "count": count, "mode": mode})
    tokens, arrivals = tuple(said["tokens"]), said["arrivals_ms"]
    if len(tokens) != count or len(arrivals) != count:
        raise DataError(
            f"A peer was asked for {count} tokens and gave {len(tokens)}, with {len(arrivals)} times.",
            hint="Measure without it, and report this.",
        )
    return MethodAnswer(tokens, arrivals[0], arrivals[-1] - arrivals[0])


@contextmanager
def streaming_server(run: SuiteRun, sampling: Sampling) -> Iterator[tuple[Ask, Child]]:
    """`moa-server serve` without drafts, asked as a user's program would."""
    with running_server(run.model, level=run.level, drafter="none", cores=run.server_cores) as server:
        with on_cores(run.own_cores):
            client = PlainClient(server.address)
            client.open()

        def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
            with on_cores(run.own_cores):
                return MethodAnswer.timed(client.ask(prompt, AnswerSettings(sampling, max_tokens=most)))

        try:
            yield ask, server
        finally:
            client.close()
