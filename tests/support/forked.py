"""Programs of ours that need torch, forked from a process that has imported it: each alone would take seconds to do so.

A fork sees the arguments, the environment and the streams that a program of its own would have.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedWriter, FileIO, TextIOWrapper
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from tests.support.programs import PATIENCE

os.environ.setdefault("OMP_NUM_THREADS", "1")  # which is read when torch is imported
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch.distributed", "transformers.masking_utils", "transformers.modeling_utils", "accelerate", "structlog"]
)


@dataclass(frozen=True)
class ForkedProgram:
    """A program that runs, and its standard output."""

    process: ForkServerProcess
    out: IO[str]

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        """Waits for the end: the exit status, or less than zero for a signal."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None
        return self.process.exitcode


@contextmanager
def forked(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], errors: Path
) -> Iterator[ForkedProgram]:
    """Starts `python -m MODULE ARGUMENTS`, which writes its standard error to a file; kills it at the end of the block."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as out:
        try:
            given = (module, list(arguments), dict(environment), str(errors), _Inherited(writing))
            process = _CONTEXT.Process(target=_run, args=given)
            process.start()
        finally:
            os.close(writing)
        try:
            yield ForkedProgram(process, out)
        finally:
            process.kill()
            process.join()
            process.close()


class _Inherited:
    """A file descriptor that the fork is given."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._number),)


def _detach(given: Any) -> int:
    number: int = given.detach()
    return number


def _run(module: str, arguments: list[str], environment: dict[str, str], errors: str, out: int) -> None:
    gc.freeze()  # what was imported is no garbage; a search through it takes 0.2 s
    os.dup2(out, 1)
    os.close(out)
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def _stream(number: int, errors: str) -> TextIOWrapper:
    """What Python makes of a stream that is a pipe or a file when it starts."""
    return TextIOWrapper(
        BufferedWriter(FileIO(number, "w", closefd=False)), "utf-8", errors, line_buffering=number == 2
    )
