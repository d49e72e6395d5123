"""`moa-bench invariance`: reads texts in every way that a server reads them, and compares the bits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from moa_shared.errors import InternalError
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.prompts import PASSAGE, QUESTIONS, read_questions
from moa_bench.harness.targets import load_level, on_variant, use_threads, variants_here
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import ENGINE, machine_line, table
from moa_bench.suites.engine.invariance.batches import MOST_SESSIONS, read_batches
from moa_bench.suites.engine.invariance.readings import (
    ResumeTallies,
    Tally,
    chains,
    chunks,
    mixed,
    read,
    read_resumed,
    trees,
)
from moa_bench.suites.engine.invariance.reference import read_alone
from moa_bench.suites.engine.invariance.texts import PlannedText, plan_texts

if TYPE_CHECKING:
    from moa_server.target import Target

POSITIONS, QUICK_POSITIONS = 100_000, 300
THREADS = (2, 3)  # three on two cores: threads then often wake late
GROUP = MOST_SESSIONS  # texts that share the batches
# Of each text where nothing but batches is compared, so that fewer single steps are needed. Half of the rows are of
# prompts, and half of those have no logits; texts of a quarter of the positions give more choices than wanted.
BATCH_READINGS, TEXTS_SHARE = 8, 1 / 4
# What a position costs besides the single step, in rows: ten are computed, wrong branches among them; those on slower
# variants, and hashing, make them 25 (4,119 positions took 42 ms of processor time each: 10.9 a step, 1.2 a row).
ROWS_A_POSITION = 25


@dataclass(slots=True)
class Subject:
    """The target that is compared with itself.

    Args:
        others: the same target on other variants of the kernels, by name.
        threads: numbers of threads besides one.
    """

    level: str
    target: Target
    others: Mapping[str, Target] = field(default_factory=dict)
    threads: Sequence[int] = THREADS


def compare(
    subject: Subject, planned: Sequence[PlannedText], advance: Callable[[int], object] = lambda positions: None
) -> Iterator[tuple[int, dict[str, Tally]]]:
    """Reads all texts in all ways.

    Args:
        advance: takes the number of positions done since the last call.

    Yields:
        After each group how many texts are done, and what was counted so far, by kind.
    """
    tallies: dict[str, Tally] = {}
    for first in range(0, len(planned), GROUP):
        group = planned[first : first + GROUP]
        _compare_group(subject, group, first, tallies, advance)
        yield first + len(group), tallies


def _compare_group(
    subject: Subject,
    planned: Sequence[PlannedText],
    first: int,
    tallies: dict[str, Tally],
    advance: Callable[[int], object],
) -> None:
    target, vocab_size = subject.target, subject.target.vocab_size
    random = Random(first)
    tally = partial(_tally, tallies)
    state_layer = random.randint(0, target.layer_count)
    references = []
    for number, text in enumerate(planned, first):
        reference = read_alone(target, text, number, state_layer)
        references.append(reference)
        read(target, reference, tally("chains of 2 to 62"), chains(random))
        read(target, reference, tally("prompts in chunks of 1 to 400"), chunks(random))
        read(target, reference, tally("trees of 8 to 62"), trees(random, vocab_size))
        resumed = ResumeTallies(tally("trees of wrong branches, all nodes"), tally("after a lost cache"))
        read_resumed(target, reference, resumed, random)
        if subject.threads:
            count = subject.threads[number % len(subject.threads)]
            use_threads(subject.level, count)
            read(target, reference, tally(f"{count} threads"), mixed(random, vocab_size))
            use_threads(subject.level, 1)
        if subject.others:
            name = list(subject.others)[number % len(subject.others)]
            with on_variant(name):
                read(subject.others[name], reference, tally(f"kernels {name}"), mixed(random, vocab_size))
        advance(text.positions)
    read_batches(target, references, tally, random)


def compare_batches(
    target: Target,
    planned: Sequence[PlannedText],
    choices: int,
    advance: Callable[[int], object] = lambda choices: None,
) -> Iterator[tuple[int, dict[str, Tally]]]:
    """Reads texts in forwards of several sessions only, until so many choices were compared or no text is left.

    Args:
        advance: takes the number of choices compared since the last call.

    Yields:
        As `compare`.
    """
    tallies: dict[str, Tally] = {}
    for first in range(0, len(planned), GROUP):
        random = Random(first)
        state_layer = random.randint(0, target.layer_count)
        references = [
            read_alone(target, text, number, state_layer)
            for number, text in enumerate(planned[first : first + GROUP], first)
        ]
        tally = partial(_tally, tallies)
        read_batches(target, references, tally, random, readings=BATCH_READINGS, advance=advance)
        yield first + len(references), tallies
        if sum(counts.choices for counts in tallies.values()) >= choices:
            return


def _tally(tallies: dict[str, Tally], kind: str) -> Tally:
    return tallies.setdefault(kind, Tally())


def run_invariance(
    *,
    model: str,
    level: str,
    positions: int | None,
    threads: Sequence[int],
    questions: Path | None,
    quick: bool,
    json_file: Path | None,
    batches: bool = False,
) -> None:
    """Compare and report.

    Args:
        positions: of the texts; None: 100,000, or few if quick.
        batches: compare forwards of several sessions only; `positions` are then the choices to compare.
        threads: numbers of threads to compare with one; empty: 2 and 3.
        questions: a file or folder of questions; None: the bench's own.

    Raises:
        MoaError: the target or the questions cannot be had.
        InternalError: the level promises bits that do not depend on what is computed together, and they do.
    """
    from moa_shared.models import load_tokenizer, resolve

    experiment = Experiment("invariance", quick=quick, json_file=json_file, level=level)
    progress = make_progress()
    asked = read_questions(questions) if questions else [*QUESTIONS, PASSAGE]
    files = resolve(model, progress=progress)
    wanted = positions or (QUICK_POSITIONS if quick else POSITIONS)
    planned = plan_texts(load_tokenizer(files), asked, math.ceil(wanted * TEXTS_SHARE) if batches else wanted)
    execution = load_level(files, level, progress)
    subject = Subject(level, execution.target, threads=tuple(threads) or THREADS)
    names: list[str] = []
    if level == INT8 and not batches:
        from moa_kernels import variant_name

        names = variants_here()
        subject.others = {name: _load_on(name, files, progress) for name in names if name != variant_name()}
    if not batches:
        _say_duration(subject.target, wanted, progress)
    experiment.result |= {"target": files.target_id, "execution": execution.details, "variants": names}
    began = time.monotonic()
    tallies: dict[str, Tally] = {}
    with progress.task("Positions", wanted) as task:
        steps = (
            compare_batches(subject.target, planned, wanted, task.advance)
            if batches
            else compare(subject, planned, task.advance)
        )
        for count, tallies in steps:
            done = planned[:count]
            experiment.result |= {
                "positions": sum(text.positions for text in done),
                "texts": count,
                "longest": max(text.positions for text in done),
                "seconds": round(time.monotonic() - began, 1),
                "kinds": [{"kind": kind, "counts": counts} for kind, counts in tallies.items()],
            }
            experiment.save()  # a run takes an hour
    name = f"invariance-{level}-batches" if batches else f"invariance-{level}"
    experiment.publish(render(experiment.result), name=name, page=ENGINE)
    if execution.exact and any(counts.different for counts in tallies.values()):
        raise InternalError(f"At {level} a row's bits depend on what is computed with it.")


def _load_on(name: str, files: Any, progress: Progress) -> Target:
    with on_variant(name):
        return load_level(files, INT8, progress).target


def _say_duration(target: Target, positions: int, progress: Progress) -> None:
    step_ms, row_ms = _costs(target)
    seconds = positions * (step_ms + ROWS_A_POSITION * row_ms) / 1e3
    progress.note(
        f"{positions} positions: about {seconds / 60:.0f} minutes ({step_ms:.1f} ms a step, {row_ms:.1f} ms a row more)"
    )


def _costs(target: Target) -> tuple[float, float]:
    """Milliseconds of a step after 100 tokens, and of each further row in a chain of 32."""
    cache = target.new_cache()
    target.forward(cache, [1] * 100, logits_for=())
    taken: dict[int, list[float]] = {1: [], 32: []}
    for _ in range(5):
        for count, times in taken.items():
            began = time.perf_counter()
            target.forward(cache, [1] * count)
            times.append(1e3 * (time.perf_counter() - began))
            cache.crop(100)
    step_ms, chain_ms = median(taken[1]), median(taken[32])
    return step_ms, max(0.0, chain_ms - step_ms) / 31


def render(result: Mapping[str, Any]) -> str:
    """The table of kinds."""
    rows = [
        [kind["kind"], counts.rows, counts.different, counts.choices, counts.flipped]
        for kind in result["kinds"]
        for counts in [kind["counts"]]
    ]
    rows.append(["in all", *(sum(row[column] for row in rows) for column in (1, 2, 3, 4))])
    variants = f"; kernels of this CPU: {', '.join(result['variants'])}" if result["variants"] else ""
    note = (
        f"{result['positions']} positions of {result['texts']} texts (the longest has {result['longest']}), level "
        f"{result['level']}, {result['execution']}{variants}; {result['seconds'] / 60:.0f} minutes.\n"
    )
    head = ["read again in", "rows compared", "of other bits", "choices compared", "another choice"]
    return "\n".join([machine_line(result), note, table(head, rows)])
