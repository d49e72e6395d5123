"""Forwards on each engine in interleaved rounds, by rows and context; memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import Progress, make_progress

from moa_bench.harness.cores import on_cores
from moa_bench.harness.workers import WorkerProcess, running_workers
from moa_bench.report.facts import cpu_flags
from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.spread import Spread, paired_ratio
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine import EngineEffort
from moa_bench.suites.engine.limit import READ_BYTES, READING, make_array, step_bytes, time_reading
from moa_bench.suites.engine.products import measure_products
from moa_bench.suites.engine.subjects import llama_subject, our_subjects


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
    """Forwards of the model, or products of the kernels, as the effort says."""
    if effort.kernels:
        return measure_products(effort)
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
    needed, array = step_bytes(files), make_array()
    forwards, prompts, limits = [], [], []
    steps: dict[str, list[float]] = {}
    with progress.task("Forwards", len(effort.contexts) * (len(effort.rows) + 1)) as task:
        for context in effort.contexts:
            reading = {worker.subject.name: partial(worker.read, context) for worker in workers}
            taken = collect_interleaved(reading, effort.prompts, warm_up=1)
            prompts += [
                PromptCost(name, context, Spread.of([each / context for each in ms])) for name, ms in taken.items()
            ]
            task.advance(1)
            for rows in effort.rows:
                cases = {
                    worker.subject.name: partial(worker.forward, rows)
                    for worker in workers
                    if worker.subject.trees or rows == 1
                }
                if rows == 1:
                    cases[READING] = partial(time_reading, array)
                taken = collect_interleaved(cases, effort.rounds)
                if rows == 1:
                    limits.append(_limit(context, needed.at(context), taken.pop(READING)))
                    steps = taken
                forwards += [
                    EngineCost(name, context, rows, Spread.of(ms), paired_ratio(ms, steps[name]))
                    for name, ms in taken.items()
                ]
                task.advance(1)
    return {"forwards": forwards, "prompts": prompts, "limits": limits}


def _limit(context: int, needed: int, reading_ms: Sequence[float]) -> MemoryLimit:
    return MemoryLimit(
        context,
        round(needed / 1e6, 1),
        Spread.of([READ_BYTES / ms / 1e6 for ms in reading_ms]),
        Spread.of([ms * needed / READ_BYTES for ms in reading_ms]),
    )
