"""Programs of ours as child processes: started, awaited until they can be called, ended with the block."""

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
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores

START_TIMEOUT_S = 300.0  # a first run converts the default model, which takes tens of seconds on a slow core
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.005
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Child:
    """A running program."""

    address: str  # "host:port" where it can be called
    start_ms: float  # from the start of the process until it could be called
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads together, to a hundredth."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        raise UnavailableError(f"Process {pid} has ended.", hint="Look at its log.") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(
    module: str, arguments: Sequence[str], *, cores: set[int] | None = None, last: Sequence[str] = ()
) -> Iterator[Child]:
    """Start `python -m module arguments` and wait until it has written its address into its ready file.

    Args:
        cores: the ones that it may use; None: any.
        last: arguments that no option may follow.
    """
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, (Path(folder) / "log").open("w+b") as log:
        ready = Path(folder) / "ready"
        began = time.perf_counter()
        with on_cores(cores):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, "--ready-file", str(ready), *last],
                stdout=log,
                stderr=log,
                env=child_environment(),
            )
        try:
            address = _await_ready(module, process, ready, began, Path(log.name))
            yield Child(address, (time.perf_counter() - began) * 1e3, process)
        finally:
            _end(process)


@contextmanager
def running_server(
    model: str = "default",
    *,
    level: str = INT8,
    drafter: str = "default",
    flags: Sequence[str] = (),
    cores: set[int] | None = None,
) -> Iterator[Child]:
    """Start a moa-server of one thread on loopback, and wait until it can be called.

    Args:
        drafter: whose memory rows it serves: "default", "deep", "none" or a checkpoint's path.
        flags: more of `moa-server serve`.
        cores: the ones that it may use; None: any.
    """
    # A measurement asks the same again and again, and each time the whole text is to be read; all from one address.
    arguments = [
        "serve", model, "--config", os.devnull, "--port", "0", "--threads", "1",
        "--execution", level, "--drafter", drafter,
        "--log-level", "warning", "--grace-seconds", "1", "--allow-ignore-end-of-text",
        "--share-prefixes", "off", "--peer-requests-per-minute", "0", *flags,
    ]  # fmt: skip
    with running("moa_server.cli", arguments, cores=cores) as server:
        yield server


def child_environment() -> dict[str, str]:
    """Our environment, with one thread and the packages that this process sees, installed or not."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def _await_ready(module: str, process: subprocess.Popen[bytes], ready: Path, began: float, log: Path) -> str:
    while time.perf_counter() - began < START_TIMEOUT_S:
        if ready.is_file() and (address := ready.read_text("utf-8").strip()):
            return address
        if process.poll() is not None:
            raise UnavailableError(
                f"{module} ended with status {process.returncode}: {_tail(log)}", hint="Start it by hand to see why."
            )
        time.sleep(_POLL_S)
    raise UnavailableError(
        f"{module} was not ready after {START_TIMEOUT_S:.0f} s: {_tail(log)}", hint="Start it by hand to see why."
    )


def _tail(log: Path) -> str:
    """The end of what a program wrote, as the end of a sentence."""
    said = log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
    return said if said.endswith((".", "!", "?")) else f"{said}."


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
