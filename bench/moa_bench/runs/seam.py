"""Runs a suite whose package has `suite.py` with `estimate_s`, `measure`, `render`, `draw` and `QUICK`.

Each cell that such a suite keeps is in its journal, so a killed run continues in the middle of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import click
from moa_shared.programs.progress import make_progress

from moa_bench.report.experiment import Experiment
from moa_bench.report.journal import Journal
from moa_bench.report.report import checkout_root
from moa_bench.runs.durations import duration
from moa_bench.runs.suites import Part, Request


def seam_part(name: str, module: str, page: str, *, effort: Mapping[str, Any] | None = None, **more: Any) -> Part:
    """A part of a suite of this form; `module` is imported when its estimate or its run begins.

    Args:
        effort: fields of its effort that are others than by default, unless the run is quick.
        more: given to its `measure` too.
    """
    changed = effort or {}

    def start(request: Request) -> None:
        run_seam(import_module(module), name, page, request, more, changed)

    def seconds(quick: bool) -> float:
        suite = import_module(module)
        return float(suite.estimate_s(effort_of(suite, quick, changed)))

    return Part(name, page, seconds, start, pictures=(f"{name}*",))


def effort_of(suite: Any, quick: bool, changed: Mapping[str, Any]) -> Any:
    """A suite's effort: `QUICK`, or its class with what it has by default but for the changed fields."""
    return suite.QUICK if quick else replace(type(suite.QUICK)(), **changed)


def run_seam(
    suite: Any, name: str, page: str, request: Request, more: Mapping[str, Any], changed: Mapping[str, Any]
) -> None:
    """Measures what the journal has not, publishes, draws; then the journal goes.

    Raises:
        MoaError: as the suite raises it, or a file cannot be read or written.
    """
    effort = effort_of(suite, request.quick, changed)
    experiment = Experiment(name, quick=request.quick, json_file=request.json_file(name), pin=request.pin)
    wanted = {
        "model": request.model,
        "level": request.level,
        "questions": request.questions,
        "drafters": request.drafters,
        "traces": request.traces,
        "cores": (experiment.server_cores, experiment.own_cores),
        **more,
    }
    header = run_header(experiment.result["machine"], request) | {"suite": name, "effort": asdict(effort)}
    journal = Journal(request.journals / f"{name}.jsonl", header, afresh=request.afresh)
    try:
        tell_resumed(journal, name, float(suite.estimate_s(effort)))
        experiment.result |= suite.measure(effort, journal.keep, **accepted(suite.measure, wanted))
        experiment.publish(suite.render(experiment.result), page=page)
        folder = request.out
        if folder is None and not request.quick and (root := checkout_root()) is not None:
            folder = root / "docs" / "img"
        if folder is not None:
            for path in suite.draw(experiment.result, folder):
                click.echo(path)
        journal.discard()
    finally:
        journal.close()


def run_header(machine: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """What all cells of a run depend on: commit, machine, model, level and the like; not the time or the load."""
    facts = {key: machine[key] for key in ("commit", "cpu", "cores_allowed", "system", "python", "packages")}
    return facts | {
        "model": request.model,
        "level": request.level,
        "pinned": request.pin,
        "quick": request.quick,
        "questions": None if request.questions is None else str(request.questions.absolute()),
        "drafters": {name: str(path.absolute()) for name, path in request.drafters.items()},
        "traces": list(request.traces),
    }


def accepted(function: Callable[..., Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function has."""
    has = inspect.signature(function).parameters
    return {key: value for key, value in wanted.items() if key in has}


def tell_resumed(journal: Journal, name: str, estimate_s: float) -> None:
    """Says what the journal holds already, or why it begins again."""
    note = make_progress().note
    if journal.outdated:
        others = ", ".join(journal.outdated)
        note(f"{name}: begins again, because of another {others}; what was there is kept as {journal.path}.old")
    if journal.resumed:
        left = duration(max(0.0, estimate_s - journal.resumed_s))
        note(f"{name}: {journal.resumed} cells are there already ({duration(journal.resumed_s)}); about {left} left.")
