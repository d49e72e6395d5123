"""Engines to compare: each a process that obeys lines of JSON, so that rounds of all can be interleaved."""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import Progress

from moa_bench.harness.child import child_environment, cpu_s
from moa_bench.harness.cores import on_cores


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """An engine to measure."""

    name: str  # for tables
    command: tuple[str, ...]  # that starts it
    environment: Mapping[str, str] = field(default_factory=dict)  # variables added to ours
    trees: bool = True  # whether it takes more than one row at once


class WorkerProcess:
    """A running engine; made by `running_workers`.

    Attributes:
        modes: in which it answers, where it is a peer.
        load_s: from the start of its process until it could be asked.
    """

    def __init__(self, subject: WorkerCommand, process: subprocess.Popen[str], log: Path, began: float) -> None:
        self.subject = subject
        self._process = process
        self._log = log
        self.resident_mb = 0.0
        hello = self._answer()
        self.details, self.modes = str(hello["details"]), tuple(hello.get("modes", ()))
        self.load_s = time.perf_counter() - began

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def read(self, tokens: int) -> float:
        """Milliseconds of reading a prompt into an empty cache."""
        return float(self.ask({"read": tokens})["ms"])

    def forward(self, rows: int) -> float:
        """Milliseconds of a forward after that prompt."""
        return float(self.ask({"forward": rows})["ms"])

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """What it says to a command."""
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
    """All of them, loaded; they end with the block."""
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
                    env=child_environment() | dict(subject.environment),
                )
            stack.callback(_end, process)
            workers.append(WorkerProcess(subject, process, log, began))
            task.advance(1)
        yield workers


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
