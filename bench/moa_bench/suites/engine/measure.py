"""Forwards on the kernels of each variant, torch and llama.cpp in interleaved rounds, by rows and context; memory.

The memory limit: a step cannot be faster than reading the bytes that it needs, at what one core reads a second.
"""

import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from moa_kernels import F16
from moa_kernels.library import VARIANT_VARIABLE, variant_name
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.gguf.parts import is_gguf
from moa_shared.models.network.layer_sizes import cached_heads
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS, WeightReader, idle_experts_nbytes
from moa_shared.programs.machine import ms_since
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.child import WorkerCommand, WorkerProcess, running_workers
from moa_bench.harness.stage import variants_here
from moa_bench.machine import cpu_flags, on_cores
from moa_bench.registry import LLAMA_CPP, EngineEffort
from moa_bench.spread import Spread, collect_interleaved, paired_ratio
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine.tables import render

__all__ = ["measure", "render"]
READ_BYTES = 1 << 28  # far beyond every cache of a processor
READING = "reading memory"
# As a machine that has AVX512-VNNI and neither AMX nor bf16 instructions: torch's matrix products obey it.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}


@dataclass(frozen=True, slots=True)
class EngineCost:
    """What a forward costs on one engine."""

    engine: str
    context: int
    rows: int
    ms: Spread
    to_step: Spread  # to the same engine's plain step, round by round


@dataclass(frozen=True, slots=True)
class PromptCost:
    """What reading a prompt of `context` tokens costs, in milliseconds per token."""

    engine: str
    context: int
    ms_a_token: Spread


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What reading a plain step's bytes takes."""

    context: int
    mb: float
    gb_s: Spread  # what one core reads
    ms: Spread


def measure(effort: EngineEffort, run: SuiteRun) -> Result:
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    subjects = our_subjects(run.model, cpu_flags(), is_sized=run.shape is not None)
    if run.llama_cpp is not None:
        subjects.append(llama_subject(run.llama_cpp, files))
    else:
        progress.note("llama.cpp is not measured: --llama-cpp names no folder with node-llama-cpp.")
    with running_workers(subjects, run.server_cores, progress) as workers:
        with on_cores(run.server_cores):
            result: Result = {"target": files.target_id} | _measure(workers, files, effort, progress)
        result["memory"] = {worker.subject.name: worker.resident_mb for worker in workers}
        result["load_s"] = {worker.subject.name: round(worker.load_s, 2) for worker in workers}
        result["details"] = {worker.subject.name: worker.details for worker in workers}
    return result


def _measure(workers: Sequence[WorkerProcess], files: ModelFiles, effort: EngineEffort, progress: Progress) -> Result:
    def timing(worker: WorkerProcess, **command: int) -> Callable[[], float]:
        return lambda: float(worker.ask(command)["ms"])

    (weights, position), array = step_bytes(files), np.ones(READ_BYTES // 4, np.float32)
    forwards, prompts, limits = [], [], []
    steps: dict[str, list[float]] = {}
    with progress.task("Forwards", len(effort.contexts) * (len(effort.rows) + 1)) as task:
        for context in effort.contexts:
            reading = {worker.subject.name: timing(worker, read=context) for worker in workers}
            taken = collect_interleaved(reading, effort.prompts, warm_up=1)
            prompts += [
                PromptCost(name, context, Spread.of([each / context for each in ms])) for name, ms in taken.items()
            ]
            task.advance(1)
            for rows in effort.rows:
                asked = [worker for worker in workers if worker.subject.trees or rows == 1]
                cases = {worker.subject.name: timing(worker, forward=rows) for worker in asked}
                if rows == 1:
                    cases[READING] = partial(time_reading, array)
                taken = collect_interleaved(cases, effort.rounds)
                if rows == 1:
                    read_ms, needed, steps = taken.pop(READING), weights + context * position, taken
                    gb_s = Spread.of([READ_BYTES / ms / 1e6 for ms in read_ms])
                    limit_ms = Spread.of([ms * needed / READ_BYTES for ms in read_ms])
                    limits.append(MemoryLimit(context, round(needed / 1e6, 1), gb_s, limit_ms))
                forwards += [
                    EngineCost(name, context, rows, Spread.of(ms), paired_ratio(ms, steps[name]))
                    for name, ms in taken.items()
                ]
                task.advance(1)
    return {"forwards": forwards, "prompts": prompts, "limits": limits}


def step_bytes(files: ModelFiles) -> tuple[int, int]:
    """What a plain step reads: bytes of all layers and the head, as they are in the file, of experts those that a token
    goes to; and bytes of keys and values of each position, in float16.
    """
    reader = WeightReader(files)
    read = [name for name in reader.names() if name not in (EMBEDDINGS, HEAD, LAYER_EMBEDDINGS)]
    weights = sum(map(reader.stored_bytes, [*read, HEAD])) - idle_experts_nbytes(files)
    return weights, sum(heads.nbytes(F16) for heads in cached_heads(files.config))


def time_reading(array: npt.NDArray[np.float32]) -> float:
    """Milliseconds of reading an array once: a dot product with itself, which is bound by memory."""
    began = time.perf_counter()
    np.dot(array, array)
    return ms_since(began)


def our_subjects(model: str, cpu_flags: Collection[str], *, is_sized: bool = False) -> list[WorkerCommand]:
    """The kernels on every variant that this CPU runs, and torch on both of its levels.

    Args:
        is_sized: only the kernels in use: others would pack all weights once more, and torch unpack them.
    """

    def subject(name: str, level: str, environment: Mapping[str, str]) -> WorkerCommand:
        worker = ("-P", "-m", "moa_bench.suites.engine.worker", "--model", model, "--level", level)
        return WorkerCommand(name, (sys.executable, *worker), environment)

    names = [variant_name()] if is_sized else variants_here()
    subjects = [subject(f"kernels, {name}", INT8, {VARIANT_VARIABLE: name}) for name in names]
    if is_sized:
        return subjects
    subjects.append(subject("torch bf16", "bf16", {}))
    if "amx_bf16" in cpu_flags:
        subjects.append(subject("torch bf16 without AMX", "bf16", WITHOUT_AMX))
    return [*subjects, subject("torch float32", "float32", {})]


def llama_subject(folder: Path, files: ModelFiles, *draft: str) -> WorkerCommand:
    """llama.cpp on the same file, as a script lets it obey; `draft`: the file of a smaller model."""
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
    script = str(Path(__file__).with_name("llama_cpp.mjs"))
    return WorkerCommand(LLAMA_CPP, (node, script, str(folder.resolve()), str(files.weights[0]), *draft), trees=False)
