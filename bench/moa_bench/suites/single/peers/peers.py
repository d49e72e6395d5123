"""The peers of one run: each a process of its own on the cores of the target, and what it is asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import DataError
from moa_shared.models.gguf.parts import is_gguf
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import PlainClient
from moa_bench.harness.cores import on_cores
from moa_bench.harness.servers import running_server
from moa_bench.harness.workers import WorkerCommand, running_workers
from moa_bench.suites.single.names import LLAMA_CPP
from moa_bench.suites.single.peers.llama_cpp import FETCH_HINT, check, install_folder
from moa_bench.suites.single.rounds import Answer, Ask

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles
    from moa_shared.programs.progress import Progress

SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
MODES = {"plain": "", "lookup": ", its look-up", "assistant": ", its assistant"}


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that answers, and the modes in which it is asked."""

    subject: WorkerCommand
    modes: tuple[str, ...]


def find_peers(model: str, files: ModelFiles, cache: Path, assistant: str | None) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be run here; and of the others, why they are missing.

    Args:
        model: as the user named it; `cache`: where llama.cpp has been installed.
        assistant: a smaller model for transformers; None: there is none.

    Raises:
        ChecksumError: llama.cpp is there, with other files than those that are pinned.
    """
    missing: dict[str, str] = {}
    modes = ("plain", "lookup", "assistant") if assistant else ("plain", "lookup")
    peers = [_transformers(model, dtype, modes, assistant) for dtype in ("bfloat16", "float32")]
    if assistant is None:
        missing["transformers, its assistant"] = "no smaller model is named (--assistant)"
    node, folder = shutil.which("node"), install_folder(cache)
    if not is_gguf(files.weights[0]):
        missing[LLAMA_CPP] = f"{files.target_id} is not a GGUF file"
    elif node is None or not folder.is_dir():
        missing[LLAMA_CPP] = "node is not there" if node is None else f"it is not installed. {FETCH_HINT}"
    else:
        check(folder)
        command = (node, str(SCRIPT), str(folder.resolve()), str(files.weights[0]))
        peers.append(Peer(WorkerCommand(LLAMA_CPP, command), ("plain", "lookup")))
    return peers, missing


def _transformers(model: str, dtype: str, modes: tuple[str, ...], assistant: str | None) -> Peer:
    module = "moa_bench.suites.single.peers.transformers_worker"
    flags = ("--assistant", assistant) if assistant else ()
    command = (sys.executable, "-P", "-m", module, "--model", model, "--dtype", dtype, *flags)
    return Peer(WorkerCommand(f"transformers, {dtype}", command), modes)


@contextmanager
def running_peers(
    peers: Sequence[Peer], cores: set[int] | None, progress: Progress
) -> Iterator[tuple[dict[str, Ask], dict[str, str]]]:
    """All of them, loaded: what asks each by its name in tables, and what each says about itself.

    Raises:
        UnavailableError: one does not start.
    """
    with running_workers([peer.subject for peer in peers], cores, progress) as workers:
        asks: dict[str, Ask] = {
            f"{worker.subject.name}{MODES[mode]}": partial(ask_peer, worker.ask, mode)
            for peer, worker in zip(peers, workers, strict=True)
            for mode in peer.modes
        }
        yield asks, {worker.subject.name: worker.details for worker in workers}


def ask_peer(
    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]], mode: str, prompt: Sequence[int], count: int
) -> Answer:
    """A peer's answer of `count` tokens.

    Raises:
        DataError: it gave another number of them, or of their times.
    """
    said = ask({"ask": list(prompt), "count": count, "mode": mode})
    tokens, arrivals = tuple(said["tokens"]), said["arrivals_ms"]
    if len(tokens) != count or len(arrivals) != count:
        raise DataError(
            f"A peer was asked for {count} tokens and gave {len(tokens)}, with {len(arrivals)} times.",
            hint="Measure without it, and report this.",
        )
    return Answer(tokens, arrivals[0], arrivals[-1] - arrivals[0])


@contextmanager
def streaming_server(
    model: str, level: str, server_cores: set[int] | None, own_cores: set[int] | None
) -> Iterator[Ask]:
    """`moa-server serve` without drafts, asked as a user's program would.

    Raises:
        UnavailableError: it does not start.
    """
    with ExitStack() as stack:
        server = stack.enter_context(running_server(model, level=level, drafter="none", cores=server_cores))
        with on_cores(own_cores):
            client = PlainClient(server.address)
            stack.callback(client.close)
            client.open()

        def ask(prompt: Sequence[int], most: int) -> Answer:
            with on_cores(own_cores):
                return Answer.timed(client.ask(prompt, AnswerSettings(max_tokens=most)))

        yield ask
