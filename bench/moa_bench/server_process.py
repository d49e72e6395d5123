"""A moa-server of the bench's own: a process with one thread, on loopback, ended when the block ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import UnavailableError

from moa_bench.cores import on_cores

START_TIMEOUT_S = 300.0  # a first run converts the default model, which takes tens of seconds on a slow core
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.005
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server.

    Args:
        address: "host:port".
        start_ms: from the start of the process until it could be called.
    """

    address: str
    start_ms: float
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running_server(
    model: str = "default",
    *,
    dtype: str = "bf16",
    flags: Sequence[str] = (),
    cores: set[int] | None = None,
    port: int = 0,
) -> Iterator[ServerProcess]:
    """Start a server with one thread and wait until it is ready.

    Args:
        flags: more of `moa-server serve`.
        cores: the ones that it may use; None: any.

    Raises:
        UnavailableError: it ended or did not get ready; the end of its log is in the message.
    """
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, (Path(folder) / "log").open("w+b") as log:
        ready = Path(folder) / "ready"
        command = [
            sys.executable, "-m", "moa_server.cli", "serve", model, "--port", str(port), "--threads", "1",
            "--dtype", dtype, "--ready-file", str(ready), "--log-level", "warning", *flags,
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        began = time.perf_counter()
        with on_cores(cores):
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            address = _await_ready(process, ready, began, log.name)
            yield ServerProcess(address, (time.perf_counter() - began) * 1e3, process)
        finally:
            _end(process)


def _await_ready(process: subprocess.Popen[bytes], ready: Path, began: float, log: str) -> str:
    while time.perf_counter() - began < START_TIMEOUT_S:
        if ready.is_file() and (address := ready.read_text("utf-8").strip()):
            return address
        if process.poll() is not None:
            raise UnavailableError(
                f"moa-server ended with status {process.returncode}: {_tail(log)}", hint="Start it by hand to see why."
            )
        time.sleep(_POLL_S)
    raise UnavailableError(f"moa-server was not ready after {START_TIMEOUT_S:.0f} s: {_tail(log)}")


def _tail(log: str) -> str:
    return Path(log).read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
