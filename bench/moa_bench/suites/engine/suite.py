"""`moa-bench engine`: what a forward of the target costs on each engine, by rows and context, in interleaved rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.harness.drafters import drafter_file, find_drafter
from moa_bench.report.experiment import Experiment
from moa_bench.report.facts import cpu_flags
from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.report import ENGINE
from moa_bench.report.spread import Spread, paired_ratio
from moa_bench.suites.engine import tables
from moa_bench.suites.engine.limit import READ_BYTES, make_array, step_bytes, time_reading
from moa_bench.suites.engine.starting import measure_starts
from moa_bench.suites.engine.subjects import Worker, llama_subject, our_subjects, running_workers

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles

READING = "reading memory"


@dataclass(frozen=True, slots=True)
class EngineEffort:
    """How much to measure.

    Args:
        contexts: tokens before the forward.
        rows: of binary trees.
        rounds: of each forward; `prompts`: of reading a prompt as long as the context.
        starts: of each program.
    """

    contexts: tuple[int, ...] = (128, 1000)
    rows: tuple[int, ...] = (1, 5, 8, 16, 32, 62)
    rounds: int = 9
    prompts: int = 3
    starts: int = 3


QUICK = EngineEffort((32,), (1, 8), 1, 1, 1)


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """What a forward costs on one engine.

    Args:
        to_step: ratio to the same engine's plain step, round by round.
    """

    engine: str
    context: int
    rows: int
    ms: Spread
    to_step: Spread


@dataclass(frozen=True, slots=True)
class PromptCost:
    """What reading a prompt of `context` tokens costs, in milliseconds per token."""

    engine: str
    context: int
    ms_a_token: Spread


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What reading a plain step's bytes takes.

    Args:
        gb_s: what one core reads.
    """

    context: int
    mb: float
    gb_s: Spread
    ms: Spread


def run_engine(*, model: str, quick: bool, json_file: Path | None, pin: bool, llama_cpp: Path | None) -> None:
    """Measure and report; the picture goes to docs/img of the checkout, if the results do.

    Args:
        llama_cpp: folder in which npm has installed node-llama-cpp; None: llama.cpp is not measured.

    Raises:
        MoaError: an engine cannot be had, or fails.
    """
    effort = QUICK if quick else EngineEffort()
    experiment = Experiment("engine", quick=quick, json_file=json_file, pin=pin, effort=effort)
    from moa_shared.models import resolve

    progress = make_progress()
    files = resolve(model, progress=progress)
    subjects = our_subjects(model, cpu_flags())
    if llama_cpp is not None:
        subjects.append(llama_subject(llama_cpp, files))
    else:
        progress.note("llama.cpp is not measured: --llama-cpp names no folder with node-llama-cpp.")
    server_cores, own_cores, result = experiment.server_cores, experiment.own_cores, experiment.result
    result["target"] = files.target_id
    with running_workers(subjects, server_cores, progress) as workers:
        with on_cores(server_cores):
            result |= _measure(workers, files, effort, progress)
        result["memory"] = {worker.subject.name: worker.resident_mb for worker in workers}
        result["details"] = {worker.subject.name: worker.details for worker in workers}
    with on_cores(own_cores), tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        drafter = str(drafter_file(find_drafter(files), Path(folder)))
        with progress.task("Start-up"):
            result["starts"] = measure_starts(model, INT8, drafter, effort.starts, server_cores, own_cores)
    experiment.publish(tables.render(result), page=ENGINE)
    if (picture := experiment.picture_path("engine-speed")) is not None:
        from moa_bench.suites.engine.picture import draw

        click.echo(draw(result, picture))


def _measure(workers: Sequence[Worker], files: ModelFiles, effort: EngineEffort, progress: Progress) -> dict[str, Any]:
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
                    ForwardCost(name, context, rows, Spread.of(ms), paired_ratio(ms, steps[name]))
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
