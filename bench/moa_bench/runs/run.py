"""`moa-bench run`: says how long it takes, runs the parts that are not done yet, and continues after a kill.

Each cell that a suite keeps is in its journal, so a killed run continues in the middle of it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.programs.progress import make_progress

from moa_bench.report.journal import RunJournal
from moa_bench.report.report import checkout_root
from moa_bench.runs.execute import duration, journal_header, run_header, run_suite
from moa_bench.suite import Suite, SuiteInputs


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a user wants of a run."""

    inputs: SuiteInputs
    quick: bool
    out: Path | None  # folder for results, instead of the checkout; None: the checkout, or nowhere if quick
    journals: Path  # folder of the journals
    afresh: bool = False  # begin again, whatever the journals hold


def journal_folder(out: Path | None) -> Path:
    root = checkout_root()
    results = out or (root / "bench" / "results" if root is not None else Path())
    return results / ".journal"


def run_parts(name: str, parts: Sequence[Suite[Any]], request: RunRequest) -> None:
    """Runs parts in turn. One that this run has finished before it was killed is not run again.

    Args:
        name: of the run's journal.
    """
    names = [part.name for part in parts]
    estimates = {part.name: part.seconds(part.effort(quick=request.quick), request.inputs) for part in parts}
    note = make_progress().note
    note(f"This takes about {duration(sum(estimates.values()))}:")
    for part_name, seconds in estimates.items():
        note(f"  {part_name}: {duration(seconds)}")
    header = run_header(request.inputs, quick=request.quick) | {"parts": names}
    journal = RunJournal(request.journals / f"run-{name}.jsonl", header, afresh=request.afresh)
    try:
        tell_resumed(journal, "run", sum(estimates.values()))
        for place, part in enumerate(parts):
            journal.keep(part.name, partial(run_part, part, request))
            left = sum(estimates[name] for name in names[place + 1 :])
            note(f"{part.name}: done." + (f" About {duration(left)} left." if left else ""))
        journal.discard()
    except (KeyboardInterrupt, SystemExit):
        note("Stopped. What was measured is kept: start the same command again to continue.")
        raise
    finally:
        journal.close()


def run_part(part: Suite[Any], request: RunRequest) -> dict[str, str]:
    """Measures what the part's journal has not, publishes; then the journal goes."""
    effort, inputs = part.effort(quick=request.quick), part.inputs(request.inputs)
    header = journal_header(part, effort, inputs, quick=request.quick)
    journal = RunJournal(request.journals / f"{part.name}.jsonl", header, afresh=request.afresh)
    try:
        tell_resumed(journal, part.name, part.seconds(effort, inputs))
        run_suite(
            part,
            effort,
            inputs,
            quick=request.quick,
            json_file=None if request.out is None else request.out / f"{part.name}.json",
            keep=journal.keep,
        )
        journal.discard()
    finally:
        journal.close()
    sys.stdout.flush()
    return {"part": part.name}


def tell_resumed(journal: RunJournal, name: str, estimate_s: float) -> None:
    """Says what the journal holds already, or why it begins again."""
    note = make_progress().note
    if journal.outdated:
        others = ", ".join(journal.outdated)
        note(f"{name}: begins again, because of another {others}; what was there is kept as {journal.path}.old")
    if journal.resumed:
        left = duration(max(0.0, estimate_s - journal.resumed_s))
        note(f"{name}: {journal.resumed} cells are there already ({duration(journal.resumed_s)}); about {left} left.")
