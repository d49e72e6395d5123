"""The engines that are compared: each a process that forwards on command, so that rounds of all can be interleaved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ConfigError, UnavailableError
from moa_shared.models.gguf.parts import is_gguf
from moa_shared.protocol.levels import INT8

from moa_bench.harness.child import child_environment
from moa_bench.harness.cores import on_cores
from moa_bench.harness.targets import variants_here

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles
    from moa_shared.programs.progress import Progress

LLAMA_CPP = "llama.cpp"
# As a machine that has AVX512-VNNI and neither AMX nor bf16 instructions: torch's matrix products obey it.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
SCRIPT = Path(__file__).with_name("llama_cpp.mjs")


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine to measure.

    Args:
        name: for tables.
        command: that starts it.
        environment: variables added to ours.
        trees: whether it takes more than one row at once.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    trees: bool = True


def our_subjects(model: str, cpu_flags: Collection[str]) -> list[Subject]:
    """The kernels on every variant that this CPU runs, and torch on both of its levels."""
    from moa_kernels.library import VARIANT_VARIABLE

    subjects = [our_subject(model, f"kernels, {name}", INT8, {VARIANT_VARIABLE: name}) for name in variants_here()]
    subjects.append(our_subject(model, "torch bf16", "bf16", {}))
    if "amx_bf16" in cpu_flags:
        subjects.append(our_subject(model, "torch bf16 without AMX", "bf16", WITHOUT_AMX))
    return [*subjects, our_subject(model, "torch float32", "float32", {})]


def our_subject(model: str, name: str, level: str, environment: Mapping[str, str]) -> Subject:
    """The target on a level, in a process with these variables besides ours."""
    worker = ("-P", "-m", "moa_bench.suites.engine.worker", "--model", model, "--level", level)
    return Subject(name, (sys.executable, *worker), environment)


def llama_subject(folder: Path, files: ModelFiles) -> Subject:
    """llama.cpp on the same file.

    Raises:
        ConfigError: it, node or a GGUF file is not there.
    """
    node = shutil.which("node")
    if node is None or not (folder / "node_modules" / "node-llama-cpp").is_dir():
        missing = "node" if node is None else f"{folder}/node_modules/node-llama-cpp"
        raise ConfigError(
            f"llama.cpp cannot be measured: {missing} is not there.",
            hint=f"Run npm install --prefix {folder} node-llama-cpp, or leave out --llama-cpp.",
        )
    if not is_gguf(files.weights[0]):
        raise ConfigError(
            f"llama.cpp cannot be measured: {files.target_id} is not a GGUF file.", hint="Leave out --llama-cpp."
        )
    return Subject(LLAMA_CPP, (node, str(SCRIPT), str(folder.resolve()), str(files.weights[0])), trees=False)


class Worker:
    """A running engine; made by `running_workers`.

    Attributes:
        load_s: from the start of its process until it could be asked.
    """

    def __init__(self, subject: Subject, process: subprocess.Popen[str], log: Path, began: float) -> None:
        self.subject = subject
        self._process = process
        self._log = log
        self.resident_mb = 0.0
        self.details = str(self._answer()["details"])
        self.load_s = time.perf_counter() - began

    def read(self, tokens: int) -> float:
        """Milliseconds of reading a prompt into an empty cache."""
        return float(self.ask({"read": tokens})["ms"])

    def forward(self, rows: int) -> float:
        """Milliseconds of a forward after that prompt."""
        return float(self.ask({"forward": rows})["ms"])

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """What it says to a command.

        Raises:
            UnavailableError: it has ended.
        """
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
def running_workers(subjects: Sequence[Subject], cores: set[int] | None, progress: Progress) -> Iterator[list[Worker]]:
    """All of them, loaded; they end with the block.

    Raises:
        UnavailableError: one does not start.
    """
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
            workers.append(Worker(subject, process, log, began))
            task.advance(1)
        yield workers


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
