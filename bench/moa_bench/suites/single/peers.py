"""What a user would run instead, each in a process of its own on the cores of the target, and what it is asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import PlainClient
from moa_bench.harness.child import running_server
from moa_bench.harness.cores import on_cores
from moa_bench.harness.workers import WorkerCommand, running_workers
from moa_bench.suites.engine.subjects import llama_subject
from moa_bench.suites.single.figures import LLAMA_CPP, LLAMA_LOOKUP
from moa_bench.suites.single.rounds import Ask, MethodAnswer

SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
MODES = {LLAMA_CPP: "plain", LLAMA_LOOKUP: "lookup"}


def find_peers(files: ModelFiles, llama_cpp: Path | None) -> tuple[list[WorkerCommand], dict[str, str]]:
    """llama.cpp, where a folder has node-llama-cpp; or why it is missing."""
    if llama_cpp is None:
        return [], {LLAMA_CPP: "--llama-cpp names no folder with node-llama-cpp"}
    return [llama_subject(llama_cpp, files, SCRIPT)], {}


@contextmanager
def running_peers(
    peers: Sequence[WorkerCommand], cores: set[int] | None, progress: Progress
) -> Iterator[tuple[dict[str, Ask], dict[str, str]]]:
    """All of them, loaded: what asks each by its name in tables, and what each says about itself."""
    with running_workers(peers, cores, progress) as workers:
        asks: dict[str, Ask] = {
            name: partial(ask_peer, worker.ask, mode) for worker in workers for name, mode in MODES.items()
        }
        yield asks, {worker.subject.name: worker.details for worker in workers}


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
    model: str, level: str, server_cores: set[int] | None, own_cores: set[int] | None
) -> Iterator[Ask]:
    """`moa-server serve` without drafts, asked as a user's program would."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server(model, level=level, drafter="none", cores=server_cores))
        with on_cores(own_cores):
            client = PlainClient(server.address)
            stack.callback(client.close)
            client.open()

        def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
            with on_cores(own_cores):
                return MethodAnswer.timed(client.ask(prompt, AnswerSettings(max_tokens=most)))

        yield ask
