"""Programs as child processes: servers, awaited until they can be called, and engines that obey lines of JSON."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import INT8

from moa_bench.machine import cpu_s, note_large_pages, on_cores

START_TIMEOUT_S = 300.0  # a first run converts the default model, which takes tens of seconds on a slow core
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Child:
    address: str  # "host:port" where it can be called
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)


@contextmanager
def running(module: str, arguments: Sequence[str], *, cores: set[int] | None = None) -> Iterator[Child]:
    """Start `python -m module arguments` and wait until it has written its address into its ready file."""
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, (Path(folder) / "log").open("w+b") as log:
        ready = Path(folder) / "ready"
        began = time.perf_counter()
        with on_cores(cores):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, "--ready-file", str(ready)],
                stdout=log,
                stderr=log,
                env=child_environment(),
            )
        try:
            while not (address := ready.read_text("utf-8").strip() if ready.is_file() else ""):
                status = process.poll()
                if status is not None or time.perf_counter() - began > START_TIMEOUT_S:
                    said = Path(log.name).read_bytes()[-2000:].decode("utf-8", "replace").strip()
                    how = "was not ready in time" if status is None else f"ended with status {status}"
                    raise UnavailableError(f"{module} {how}: {said.rstrip('.')}.", hint="Start it by hand to see why.")
                time.sleep(_POLL_S)
            note_large_pages(process.pid)
            yield Child(address, process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def running_server(
    model: str = "default",
    *,
    level: str = INT8,
    drafter: str = "default",
    port: int = 0,
    cores: set[int] | None = None,
) -> AbstractContextManager[Child]:
    """A moa-server of one thread on loopback, which can be called.

    `drafter`: whose memory rows it serves: "default", "deep", "none" or a checkpoint's path. `port`: 0: any free one.
    """
    # A measurement asks the same again and again, and each time the whole text is to be read; all from one address.
    arguments = [
        "serve", model, "--config", os.devnull, "--port", str(port), "--threads", "1",
        "--execution", level, "--drafter", drafter,
        "--log-level", "warning", "--grace-seconds", "1", "--allow-ignore-end-of-text",
        "--share-prefixes", "off", "--peer-requests-per-minute", "0",
    ]  # fmt: skip
    return running("moa_server.cli", arguments, cores=cores)


def child_environment() -> dict[str, str]:
    """Our environment, with one thread and the packages that this process sees, installed or not."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """An engine to measure, as a process of its own, so that rounds of several can be interleaved."""

    name: str  # for tables
    command: tuple[str, ...]  # that starts it
    trees: bool = True  # whether it takes more than one row at once


class WorkerProcess:
    def __init__(self, subject: WorkerCommand, process: subprocess.Popen[str], log: Path, began: float) -> None:
        self.subject = subject
        self._process = process
        self._log = log
        self.resident_mb = 0.0
        hello = self._answer()
        self.details = str(hello["details"])
        self.load_s = time.perf_counter() - began
        note_large_pages(process.pid)

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        self.resident_mb = max(self.resident_mb, answer["resident_mb"] or 0.0)
        return answer

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            said = self._log.read_text("utf-8", "replace")[-500:].strip()
            raise UnavailableError(f"{self.subject.name} has ended: {said}", hint="Start it by hand to see why.")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running_workers(
    subjects: Sequence[WorkerCommand], cores: set[int] | None, progress: Progress
) -> Iterator[list[WorkerProcess]]:
    def end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    with ExitStack() as stack, progress.task("Loading engines", len(subjects)) as task:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        workers = []
        for number, subject in enumerate(subjects):
            log, began = folder / f"log-{number}", time.perf_counter()
            with on_cores(cores), log.open("w") as errors:
                process = subprocess.Popen(
                    subject.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=child_environment(),
                )
            stack.callback(end, process)
            workers.append(WorkerProcess(subject, process, log, began))
            task.advance(1)
        yield workers
