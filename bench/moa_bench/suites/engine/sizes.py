"""`moa-bench engine --shape 1b --format q4_k_m`: models of real sizes with random weights, beside llama.cpp.

Of each: the first start, which packs the weights, a later one, which maps them, memory, a plain step, a tree, a prompt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_kernels import variant_name
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.harness.random_model import random_model
from moa_bench.report.experiment import Experiment
from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.report import ENGINE
from moa_bench.report.spread import Spread, paired_ratio
from moa_bench.suites.engine import tables
from moa_bench.suites.engine.limit import READ_BYTES, make_array, step_bytes, time_reading
from moa_bench.suites.engine.subjects import Subject, Worker, llama_subject, our_subject, running_workers

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles

READING = "reading memory"
TREE_ROWS = 8


@dataclass(frozen=True, slots=True)
class SizesEffort:
    """How much to measure of each model.

    Args:
        context: tokens of the prompt, and before each forward.
        rounds: of a step; `prompts`: of reading the prompt.
    """

    context: int = 128
    rounds: int = 9
    prompts: int = 3


QUICK = SizesEffort(16, 2, 1)


@dataclass(frozen=True, slots=True)
class SizedCost:
    """What a model costs on one engine.

    Args:
        file_mb: its size; `step_mb`: the bytes that a plain step reads.
        first_s: of the first start until it can be asked; `later_s`: of another one.
        step_ms: a plain step; `to_reading`: over merely reading its bytes, round by round.
        tree_to_step: a forward of a tree over a plain step; None: it takes one row at a time.
        prompt_ms: of each token of the prompt.
    """

    model: str
    engine: str
    file_mb: float
    step_mb: float
    first_s: float
    later_s: float
    resident_mb: float
    step_ms: Spread
    to_reading: Spread
    tree_to_step: Spread | None
    prompt_ms: Spread


def run_sizes(
    *,
    shapes: Sequence[str],
    formats: Sequence[str],
    quick: bool,
    json_file: Path | None,
    pin: bool,
    llama_cpp: Path | None,
) -> None:
    """Measure each shape in each format, and report.

    Args:
        llama_cpp: folder in which npm has installed node-llama-cpp; None: llama.cpp is not measured.

    Raises:
        MoaError: a model cannot be made, an engine cannot be had, or fails.
    """
    effort = QUICK if quick else SizesEffort()
    experiment = Experiment("engine-sizes", quick=quick, json_file=json_file, pin=pin, effort=effort)
    from moa_shared.models import resolve

    progress = make_progress()
    costs: list[SizedCost] = []
    experiment.result |= {"target": "random weights in real sizes", "sizes": costs}
    for shape in shapes:
        for stored in formats:
            path = random_model(shape, stored, progress)
            files = resolve(str(path), progress=progress)
            costs += _measure(f"{shape}, {stored}", files, llama_cpp, effort, experiment.server_cores, progress)
            experiment.save()
    if llama_cpp is None:
        progress.note("llama.cpp is not measured: --llama-cpp names no folder with node-llama-cpp.")
    experiment.publish(tables.render_sizes(experiment.result), page=ENGINE)


def _measure(
    model: str,
    files: ModelFiles,
    llama_cpp: Path | None,
    effort: SizesEffort,
    cores: set[int] | None,
    progress: Progress,
) -> list[SizedCost]:
    variant, path = variant_name(), files.weights[0]
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as cache:  # where nothing is packed yet
        subjects = [our_subject(str(path), f"kernels, {variant}", INT8, {"MOA_CACHE_DIR": cache})]
        if llama_cpp is not None:
            subjects.append(llama_subject(llama_cpp, files))
        first = [_load(subject, cores, progress) for subject in subjects]
        with (
            running_workers(subjects, cores, progress) as workers,
            on_cores(cores),
            progress.task(f"Measuring {model}"),
        ):
            figures = _forwards(workers, step_bytes(files).at(effort.context), effort)
            size = round(path.stat().st_size / 1e6, 1)
            return [
                SizedCost(
                    model,
                    worker.subject.name,
                    size,
                    round(step_bytes(files).at(effort.context) / 1e6, 1),
                    round(load, 2),
                    round(worker.load_s, 2),
                    worker.resident_mb,
                    **figures[worker.subject.name],
                )
                for worker, load in zip(workers, first, strict=True)
            ]


def _load(subject: Subject, cores: set[int] | None, progress: Progress) -> float:
    """Seconds of a start, after which it ends."""
    with running_workers([subject], cores, progress) as workers:
        return workers[0].load_s


def _forwards(workers: Sequence[Worker], nbytes: int, effort: SizesEffort) -> dict[str, dict[str, Any]]:
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
