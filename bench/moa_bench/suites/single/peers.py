"""What a user would run instead, each in a process of its own on the cores of the target, and what it is asked."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from moa_bench.harness.answers import PlainClient
from moa_bench.harness.child import Child, running_server
from moa_bench.harness.cores import on_cores
from moa_bench.harness.workers import WorkerCommand, WorkerProcess, running_workers
from moa_bench.suites.engine.subjects import llama_subject
from moa_bench.suites.single.figures import DRAFT_MODE, LLAMA_CPP, LOOKUP_MODE, TRANSFORMERS
from moa_bench.suites.single.rounds import Ask, MethodAnswer

SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
MODES = {"plain": "", "lookup": LOOKUP_MODE, "draft": DRAFT_MODE}
WORKER = "moa_bench.suites.single.transformers_worker"


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
    if llama_cpp is None:
        missing[LLAMA_CPP] = "--llama-cpp names no folder with node-llama-cpp"
    else:
        peers.append(llama_subject(llama_cpp, files, SCRIPT))
        if draft is not None:
            peers[0] = replace(peers[0], command=(*peers[0].command, str(draft.weights[0])))
    if is_sized:
        missing[TRANSFORMERS] = "it unpacks the weights into bfloat16, which takes more than three times their memory"
    elif not (find_spec("torch") and find_spec("transformers")):
        missing[TRANSFORMERS] = "torch or transformers is not installed"
    else:
        smaller = ("--assistant", str(draft.weights[0])) if draft is not None else ()
        command = (sys.executable, "-P", "-m", WORKER, "--model", str(files.weights[0]), *smaller)
        peers.append(WorkerCommand(TRANSFORMERS, command, trees=False))
    if draft is None:
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
def streaming_server(
    model: str, level: str, server_cores: set[int] | None, own_cores: set[int] | None, sampling: Sampling
) -> Iterator[tuple[Ask, Child]]:
    """`moa-server serve` without drafts, asked as a user's program would."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server(model, level=level, drafter="none", cores=server_cores))
        with on_cores(own_cores):
            client = PlainClient(server.address)
            stack.callback(client.close)
            client.open()

        def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
            with on_cores(own_cores):
                return MethodAnswer.timed(client.ask(prompt, AnswerSettings(sampling, max_tokens=most)))

        yield ask, server
