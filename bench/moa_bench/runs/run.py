"""`moa-bench run`: says how long it takes, runs the parts that are not done yet, and continues after a kill.

Each cell that a suite keeps is in its journal, so a killed run continues in the middle of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.programs.progress import make_progress

from moa_bench.report.journal import Journal
from moa_bench.report.report import checkout_root
from moa_bench.runs.chapters import Part
from moa_bench.runs.durations import duration
from moa_bench.runs.execute import journal_header, run_header, run_suite
from moa_bench.suite import Inputs


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a user wants of a run.

    Args:
        out: folder for results, instead of the checkout; None: the checkout, or nowhere if quick.
        journals: folder of the journals.
        afresh: begin again, whatever the journals hold.
    """

    inputs: Inputs
    quick: bool
    out: Path | None
    journals: Path
    afresh: bool = False


def journal_folder(out: Path | None) -> Path:
    """Where journals are: with the results."""
    root = checkout_root()
    results = out or (root / "bench" / "results" if root is not None else Path())
    return results / ".journal"


def run_parts(name: str, parts: Sequence[Part], request: RunRequest) -> None:
    """Runs parts in turn. One that this run has finished before it was killed is not run again.

    Args:
        name: of the run's journal.

    Raises:
        MoaError: a part fails; those before it are kept.
    """
    names = [part.name for part in parts]
    estimates = {part.name: part.seconds(quick=request.quick) for part in parts}
    note = make_progress().note
    note(f"This takes about {duration(sum(estimates.values()))}:")
    for part_name, seconds in estimates.items():
        note(f"  {part_name}: {duration(seconds)}")
    header = run_header(request.inputs, quick=request.quick) | {"parts": names}
    journal = Journal(request.journals / f"run-{name}.jsonl", header, afresh=request.afresh)
    try:
        tell_resumed(journal, "run", sum(estimates.values()))
        for place, part in enumerate(parts):
            journal.keep(part.name, _started(part, request))
            left = sum(estimates[name] for name in names[place + 1 :])
            note(f"{part.name}: done." + (f" About {duration(left)} left." if left else ""))
        journal.discard()
    except (KeyboardInterrupt, SystemExit):
        note("Stopped. What was measured is kept: start the same command again to continue.")
        raise
    finally:
        journal.close()


def _started(part: Part, request: RunRequest) -> Callable[[], dict[str, str]]:
    def start() -> dict[str, str]:
        run_part(part, request)
        sys.stdout.flush()
        return {"part": part.name}

    return start


def run_part(part: Part, request: RunRequest) -> None:
    """Measures what the part's journal has not, publishes, draws; then the journal goes.

    Raises:
        MoaError: as the suite raises it, or a file cannot be read or written.
    """
    effort = part.effort(quick=request.quick)
    header = journal_header(part.suite, effort, request.inputs, quick=request.quick)
    journal = Journal(request.journals / f"{part.name}.jsonl", header, afresh=request.afresh)
    try:
        tell_resumed(journal, part.name, part.seconds(quick=request.quick))
        run_suite(
            part.suite,
            effort,
            request.inputs,
            quick=request.quick,
            json_file=None if request.out is None else request.out / f"{part.name}.json",
            pictures=request.out,
            keep=journal.keep,
        )
        journal.discard()
    finally:
        journal.close()


def tell_resumed(journal: Journal, name: str, estimate_s: float) -> None:
    """Says what the journal holds already, or why it begins again."""
    note = make_progress().note
    if journal.outdated:
        others = ", ".join(journal.outdated)
        note(f"{name}: begins again, because of another {others}; what was there is kept as {journal.path}.old")
    if journal.resumed:
        left = duration(max(0.0, estimate_s - journal.resumed_s))
        note(f"{name}: {journal.resumed} cells are there already ({duration(journal.resumed_s)}); about {left} left.")
