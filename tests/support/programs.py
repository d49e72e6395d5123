"""Programs of the checkout as processes: what they see, and starters that end them whatever happens."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 100.0  # seconds until a program that says nothing is taken to hang


def environment(*roots: str, **more: str) -> dict[str, str]:
    """Ours, with these of the checkout's source roots and no others on the path, and one thread."""
    path = os.pathsep.join(str(CHECKOUT / root) for root in roots)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def free_port() -> int:
    """A port of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def printed(*command: object, seconds: float = PATIENCE, **more: Any) -> str:
    """What a program prints, which must not fail; `more`: of `subprocess.run`."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=seconds, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return str(done.stdout)


@dataclass(frozen=True)
class Program:
    """A running program between two pipes."""

    process: subprocess.Popen[str]
    out: IO[str]
    err: IO[str]

    def end(self) -> tuple[int, str, str]:
        """Waits for the end: exit status, and what was not read of both pipes."""
        out, err = self.out.read(), self.err.read()
        return self.process.wait(PATIENCE), out, err


def module(name: str, arguments: Sequence[str]) -> list[str]:
    """The command of a program of ours."""
    return [sys.executable, "-m", name, *arguments]


@contextmanager
def started(command: Sequence[str], environment: dict[str, str]) -> Iterator[Program]:
    """Starts a program; kills it at the end of the block if it still runs."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield Program(process, process.stdout, process.stderr)
        finally:
            process.kill()
