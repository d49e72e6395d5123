"""Models of real sizes with random weights, beside llama.cpp (`moa-bench engine --shape 1b --format q4_k_m`).

Of each: the first start, which packs the weights, a later one, which maps them, memory, a plain step, a tree, a prompt.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from moa_kernels import variant_name
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.harness.random_model import random_model
from moa_bench.harness.workers import WorkerCommand, WorkerProcess, running_workers
from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.spread import Spread, paired_ratio
from moa_bench.suite import Cores, Result, SuiteRun
from moa_bench.suites.engine import EngineEffort
from moa_bench.suites.engine.limit import READ_BYTES, READING, make_array, step_bytes, time_reading
from moa_bench.suites.engine.subjects import llama_subject, our_subject, without_llama_cpp

TREE_ROWS = 8


@dataclass(frozen=True, slots=True)
class SizedCost:
    """What a model costs on one engine."""

    model: str
    engine: str
    file_mb: float
    step_mb: float  # that a plain step reads
    first_s: float  # of the first start until it can be asked
    later_s: float  # of another one
    resident_mb: float
    step_ms: Spread
    to_reading: Spread  # a plain step over merely reading its bytes, round by round
    tree_to_step: Spread | None  # a forward of a tree over a plain step; None: it takes one row at a time
    prompt_ms: Spread  # of each token


def measure_sizes(effort: EngineEffort, run: SuiteRun) -> Result:
    """Each shape in each format, saved as they come."""
    progress = make_progress()
    costs: list[SizedCost] = []
    result: Result = {"name": "engine-sizes", "target": "random weights in real sizes", "sizes": costs}
    for shape in effort.shapes:
        for stored in effort.formats or ("q4_k_m",):
            path = random_model(shape, stored, progress)
            files = resolve(str(path), progress=progress)
            costs += _measure(f"{shape}, {stored}", files, effort, run, progress)
            run.save(result)
    if run.llama_cpp is None:
        without_llama_cpp(progress)
    return result


def _measure(model: str, files: ModelFiles, effort: EngineEffort, run: SuiteRun, progress: Progress) -> list[SizedCost]:
    cores, path, nbytes = run.server_cores, files.weights[0], step_bytes(files).at(effort.context)
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as cache:  # where nothing is packed yet
        subjects = [our_subject(str(path), f"kernels, {variant_name()}", INT8, {"MOA_CACHE_DIR": cache})]
        if run.llama_cpp is not None:
            subjects.append(llama_subject(run.llama_cpp, files))
        first = [_load(subject, cores, progress) for subject in subjects]
        with running_workers(subjects, cores, progress) as workers, on_cores(cores):
            with progress.task(f"Measuring {model}"):
                figures = _forwards(workers, nbytes, effort)
            size, read = round(path.stat().st_size / 1e6, 1), round(nbytes / 1e6, 1)
            return [
                SizedCost(
                    model,
                    worker.subject.name,
                    size,
                    read,
                    round(load, 2),
                    round(worker.load_s, 2),
                    worker.resident_mb,
                    **figures[worker.subject.name],
                )
                for worker, load in zip(workers, first, strict=True)
            ]


def _load(subject: WorkerCommand, cores: Cores, progress: Progress) -> float:
    """Seconds of a start, after which it ends."""
    with running_workers([subject], cores, progress) as workers:
        return workers[0].load_s


def _forwards(workers: Sequence[WorkerProcess], nbytes: int, effort: EngineEffort) -> dict[str, dict[str, Any]]:
    array = make_array()
    reading = {worker.subject.name: partial(worker.read, effort.context) for worker in workers}
    prompts = collect_interleaved(reading, effort.prompts, warm_up=1)
    plain = {worker.subject.name: partial(worker.forward, 1) for worker in workers}
    trees = {worker.subject.name: partial(worker.forward, TREE_ROWS) for worker in workers if worker.subject.trees}
    steps = collect_interleaved({**plain, READING: partial(time_reading, array)}, effort.rounds, warm_up=1)
    taken = collect_interleaved(trees, effort.rounds, warm_up=1)
    limit = [ms * nbytes / READ_BYTES for ms in steps.pop(READING)]
    return {
        name: {
            "step_ms": Spread.of(ms),
            "to_reading": paired_ratio(ms, limit),
            "tree_to_step": paired_ratio(taken[name], ms) if name in taken else None,
            "prompt_ms": Spread.of([each / effort.context for each in prompts[name]]),
        }
        for name, ms in steps.items()
    }
