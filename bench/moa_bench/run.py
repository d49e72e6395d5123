"""Runs suites: what is recorded before one starts, where its result and its tables go, and how a killed run continues.

Each cell that a suite keeps is in its journal, so a killed run continues in the middle of it.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.programs.progress import make_progress

from moa_bench.harness.shapes import USUAL_FORMAT
from moa_bench.journal import RunJournal
from moa_bench.machine import gather_facts, split_cores
from moa_bench.report import checkout_root, publish
from moa_bench.suite import Keep, Result, Suite, SuiteInputs, SuiteRun


def run_suite(
    suite: Suite[Any],
    effort: Any,
    inputs: SuiteInputs,
    *,
    quick: bool,
    json_file: Path | None,
    keep: Keep = lambda key, measure: measure(),
) -> None:
    """Measures and publishes. Numpy's own products take one thread from here on.

    Args:
        json_file: where the result goes instead of the checkout; None: the checkout, unless quick.
    """
    head: Result = {"suite": suite.name, "quick": quick, "pinned": inputs.pin, "machine": gather_facts(checkout_root())}
    os.environ["OMP_NUM_THREADS"] = "1"
    server_cores, own_cores = split_cores(inputs.pin)
    head |= {"name": suite.name if suite.fixed else suite.name + inputs.suffix, "effort": effort}
    head |= {"level": inputs.level} if "level" in suite.takes else {}
    if inputs.shape is not None:
        from moa_bench.harness.random_model import random_model

        made = random_model(inputs.shape, inputs.stored or USUAL_FORMAT, make_progress())
        inputs = replace(inputs, model=str(made))
    run = SuiteRun(**vars(inputs), server_cores=server_cores, own_cores=own_cores, keep=keep)
    result = head | suite.measure(effort, run)
    publish(result["name"], result, suite.render(result), quick=quick, json_file=json_file)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a user wants of a run."""

    inputs: SuiteInputs
    quick: bool
    out: Path | None  # folder for results, instead of the checkout; None: the checkout, or nowhere if quick
    afresh: bool = False  # begin again, whatever the journals hold

    @property
    def journals(self) -> Path:
        root = checkout_root()
        return (self.out or (root / "bench" / "results" if root is not None else Path())) / ".journal"

    def header(self) -> dict[str, Any]:
        """What all cells of a run depend on: commit, machine, inputs; not the time or the load."""
        machine, inputs = gather_facts(checkout_root()), self.inputs
        facts = {key: machine[key] for key in ("commit", "cpu", "cores_allowed", "system", "python", "packages")}
        return facts | {
            **vars(inputs),
            "quick": self.quick,
            "questions": str(inputs.questions.absolute()),
            "llama_cpp": str(inputs.llama_cpp),
            "drafters": {name: str(path.absolute()) for name, path in inputs.drafters.items()},
        }


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
    header = request.header() | {"parts": names}
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
    header = replace(request, inputs=inputs).header() | {"suite": part.name, "effort": asdict(effort)}
    journal = RunJournal(request.journals / f"{part.name}.jsonl", header, afresh=request.afresh)
    json_file = None if request.out is None else request.out / f"{part.name}.json"
    try:
        tell_resumed(journal, part.name, part.seconds(effort, inputs))
        run_suite(part, effort, inputs, quick=request.quick, json_file=json_file, keep=journal.keep)
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


def duration(seconds: float) -> str:
    """In words: seconds below 90, then minutes, then hours and minutes."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
