"""`moa-bench run`: says how long it takes, runs the parts that are not done yet, and continues after a kill."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from moa_shared.programs.progress import make_progress

from moa_bench.report.facts import gather_facts
from moa_bench.report.journal import Journal
from moa_bench.report.report import checkout_root
from moa_bench.runs.durations import duration
from moa_bench.runs.seam import run_header, tell_resumed
from moa_bench.runs.suites import Part, Request


def journal_folder(out: Path | None) -> Path:
    """Where journals are: with the results."""
    root = checkout_root()
    results = out or (root / "bench" / "results" if root is not None else Path())
    return results / ".journal"


def run_parts(name: str, parts: Sequence[Part], request: Request) -> None:
    """Runs parts in turn. One that this run has finished before it was killed is not run again.

    Args:
        name: of the run's journal.

    Raises:
        MoaError: a part fails; those before it are kept.
    """
    names = [part.name for part in parts]
    estimates = {part.name: part.seconds(request.quick) for part in parts}
    note = make_progress().note
    note(f"This takes about {duration(sum(estimates.values()))}:")
    for name, seconds in estimates.items():
        note(f"  {name}: {duration(seconds)}")
    header = run_header(gather_facts(checkout_root()), request) | {"parts": names}
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


def _started(part: Part, request: Request) -> Callable[[], dict[str, str]]:
    def start() -> dict[str, str]:
        part.start(request)
        sys.stdout.flush()
        return {"part": part.name}

    return start


def default_questions() -> Path | None:
    """The evaluation set next to the checkout, where there is one; None: each suite asks its own questions."""
    root = checkout_root()
    path = None if root is None else root.parent / "shared" / "data" / "eval"
    return path if path is not None and path.is_dir() else None
