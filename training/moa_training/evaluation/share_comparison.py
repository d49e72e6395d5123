"""Standalone quality by the share of the answer that the server gave before it was lost: tables and a picture.

Besides the drafters there is a device that has none, as a client of a text API: it has what was served, and no more.
Reads what `moa-train evaluate --json` wrote. Pure but for the picture's file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_training.evaluation.comparison import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

API = "API client"
Evaluations = dict[str, dict[str, Any]]
_MEASURES = {
    "in_hand": "right share of the answer in hand",
    "agreement_8": "agreement, first 8",
    "agreement_16": "agreement, first 16",
    "agreement_32": "agreement, first 32",
    "log_likelihood": "target's log-likelihood",
    "repeated": "repeated 4-grams",
    "useful_run": "useful run, tokens",
    "shown": "shown, tokens",
    "precision": "kept of what is shown",
}
_NOTHING = ("agreement_8", "agreement_16", "agreement_32", "useful_run", "shown")  # of which such a client has 0
_DRAWN = ("in_hand", "agreement_16", "useful_run", "precision", "log_likelihood", "repeated")
_RESULTS = {"right": "right", "same_result": "the target's"}


def share_table(evaluations: Evaluations) -> str:
    """The measures at each share; empty without any."""
    lines = []
    for name, evaluation in evaluations.items():
        cuts = _cuts(evaluation)
        if evaluation.get("all_shares"):
            cuts["all"] = evaluation["all_shares"]
        if evaluation.get("cold"):
            cuts["no memory"] = evaluation["cold"]
        if not evaluation.get("shares"):
            continue
        for cut, values in cuts.items():
            cells = [_cell(values.get(key)) for key in (*_MEASURES, "target_repeated")]
            lines.append(f"| {name} | {cut} | {' | '.join(cells)} |")
    for share, values in _first_cuts(evaluations).items():
        cells = [_cell(_of_api(values, key)) for key in (*_MEASURES, "target_repeated")]
        lines.append(f"| {API} | {share} | {' | '.join(cells)} |")
    if not lines:
        return ""
    names = [*_MEASURES.values(), "target's own 4-grams"]
    return "\n".join([f"| drafter | served | {' | '.join(names)} |", "| --- |" + " ---: |" * (len(names) + 1), *lines])


def task_table(evaluations: Evaluations) -> str:
    """Task results over all categories at each share; empty without any."""
    lines = []
    for name, evaluation in evaluations.items():
        for share in evaluation.get("task", {}):
            cells = [_result(evaluation, share, key) for key in (*_RESULTS, "target_right", "ended")]
            lines.append(f"| {name} | {share} | {' | '.join(map(_cell, cells))} |")
    for share, evaluation in _first_tasks(evaluations).items():
        cells = [_result(evaluation, share, key) for key in (*(f"served_{key}" for key in _RESULTS), "target_right")]
        lines.append(f"| {API} | {share} | {' | '.join(map(_cell, cells))} |  |")
    if not lines:
        return ""
    head = "| drafter | served | right result | the target's result | right of the target | ended |"
    return "\n".join([head, "| --- |" + " ---: |" * 5, *lines])


def draw_shares(evaluations: Evaluations, path: Path) -> None:
    """Quality against the share that was served: a line for each drafter, and one for a client without any.

    Raises:
        DiskFullError: the picture cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    panels = [*_DRAWN, *(key for key in _RESULTS if _tells(evaluations, key))]
    columns = (len(panels) + 1) // 2
    figure = Figure(figsize=(3.6 * columns, 6.2), layout="constrained")
    for place, key in enumerate(panels):
        axis = figure.add_subplot(2, columns, place + 1)
        if key in _RESULTS:
            _draw_results(axis, evaluations, key)
        else:
            _draw_measure(axis, evaluations, key)
        axis.set_xlabel("served share of the answer", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    lines: dict[str, Line2D] = {}
    for line in (line for axis in figure.axes for line in axis.get_lines()):
        lines.setdefault(str(line.get_label()), line)
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=6, fontsize=8)
    save_picture(figure, path)


def _draw_measure(axis: Axes, evaluations: Evaluations, key: str) -> None:
    axis.set_title(_MEASURES[key], fontsize=9)
    for number, (name, evaluation) in enumerate(evaluations.items()):
        points = {share: values.get(key) for share, values in _cuts(evaluation).items()}
        _line(axis, points, name, "-", f"C{number}")
    first = _first_cuts(evaluations)
    _line(axis, {share: _of_api(values, key) for share, values in first.items()}, API, "--", "0.4")
    if key == "repeated":
        target = {share: values.get("target_repeated") for share, values in first.items()}
        _line(axis, target, "the target itself", ":", "black")


def _draw_results(axis: Axes, evaluations: Evaluations, key: str) -> None:
    axis.set_title(f"task result is {_RESULTS[key]}", fontsize=9)
    for number, (name, evaluation) in enumerate(evaluations.items()):
        results = {share: _result(evaluation, share, key) for share in evaluation.get("task", {})}
        _line(axis, results, name, "-", f"C{number}")
    first = _first_tasks(evaluations)
    served = {share: _result(evaluation, share, f"served_{key}") for share, evaluation in first.items()}
    _line(axis, served, API, "--", "0.4")


def _line(axis: Axes, points: dict[str, float | None], label: str, style: str, color: str) -> None:
    known = [(float(share), value) for share, value in points.items() if value is not None]
    if known:
        axis.plot([x for x, _ in known], [y for _, y in known], style, color=color, label=label, marker=".")


def _cuts(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(evaluation.get("shares", {}))


def _first_cuts(evaluations: Evaluations) -> dict[str, dict[str, Any]]:
    """Those of the first evaluation that has any; what is served is the same in all."""
    return next((cuts for each in evaluations.values() if (cuts := _cuts(each))), {})


def _first_tasks(evaluations: Evaluations) -> dict[str, dict[str, Any]]:
    """By share, the first evaluation that has task results."""
    first = next((each for each in evaluations.values() if each.get("task")), None)
    return {} if first is None else dict.fromkeys(first["task"], first)


def _tells(evaluations: Evaluations, key: str) -> bool:
    """Whether there are such task results; where the target itself is never right, nobody can be."""
    first = _first_tasks(evaluations)
    return bool(first) and (key != "right" or any(_result(each, at, "target_right") for at, each in first.items()))


def _of_api(values: dict[str, Any], key: str) -> float | None:
    """A measure of a client that has only what was served; None: of text that it does not have."""
    if key == "in_hand":
        served: float = values["served"]
        return served
    return 0.0 if key in _NOTHING else None


def _result(evaluation: dict[str, Any], share: str, key: str) -> float | None:
    """A share of questions, over all categories."""
    parts = [part for part in evaluation["task"][share].values() if part["questions"]]
    total = sum(part["questions"] for part in parts)
    return sum(part["questions"] * part[key] for part in parts) / total if total else None


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
