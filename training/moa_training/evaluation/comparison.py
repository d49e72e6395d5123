"""Several evaluations side by side: a table of acceptance, and standalone quality as a table and a picture.

Reads what `moa-train evaluate --json` wrote. Pure but for the picture's file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import DataError, DiskFullError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MEASURES = {
    "agreement_8": "agreement, first 8",
    "agreement_16": "agreement, first 16",
    "new_agreement": "agreement where the text is new",
    "repeated": "repeated 4-grams",
    "log_likelihood": "target's log-likelihood",
}


def read_evaluation(path: Path) -> dict[str, Any]:
    """The evaluation in a file; raises DataError if it holds none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not content["shapes"]:
            raise KeyError("shapes")
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{path} holds no evaluation.", hint="Write one with moa-train evaluate --json FILE.") from None
    return content


def speed_up(shape: dict[str, Any], nodes: int, forward_ms: float, node_ms: float) -> float:
    """Tokens a second against plain steps, one after the other on one machine.

    Args:
        forward_ms, node_ms: of a target forward with one token, and of each node more.
    """
    length, draft_ms = float(shape["acceptance_length"]), float(shape.get("draft_ms", 0.0))
    return length * forward_ms / (forward_ms + node_ms * nodes + draft_ms)


def acceptance_table(evaluations: dict[str, dict[str, Any]], forward_ms: float, node_ms: float) -> str:
    """Acceptance length, time of a draft and speed-up of each shape."""
    lines = ["| drafter | draft | acceptance length | ms a draft | speed-up |", "| --- | --- | ---: | ---: | ---: |"]
    for name, evaluation in evaluations.items():
        for shape, result in evaluation["shapes"].items():
            gain = speed_up(result, int(shape.split()[2]), forward_ms, node_ms)
            length, draft_ms = result["acceptance_length"], result.get("draft_ms", 0.0)
            lines.append(f"| {name} | {shape} | {length:.3f} | {draft_ms:.1f} | {gain:.2f} |")
    return "\n".join(lines)


def standalone_table(evaluations: dict[str, dict[str, Any]]) -> str:
    """The measures of standalone quality after each cut."""
    names = [*_MEASURES.values(), "target's own 4-grams"]
    lines = [f"| drafter | cut | {' | '.join(names)} |", "| --- |" + " ---: |" * (len(names) + 1)]
    for name, evaluation in evaluations.items():
        cuts = dict(evaluation.get("standalone", {}))
        if evaluation.get("cold"):
            cuts["cold"] = evaluation["cold"]
        for cut, values in cuts.items():
            cells = [_cell(values.get(key)) for key in (*_MEASURES, "target_repeated")]
            lines.append(f"| {name} | {cut} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def draw_standalone(evaluations: dict[str, dict[str, Any]], path: Path) -> None:
    """Each measure over the drafters, a bar for each cut.

    Raises:
        DiskFullError: the picture cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.1 * len(_MEASURES), 3.6), layout="constrained")
    for place, (key, label) in enumerate(_MEASURES.items()):
        axis = figure.add_subplot(1, len(_MEASURES), place + 1)
        for at, cut in enumerate(("8", "32", "64")):
            values = [each.get("standalone", {}).get(cut, {}).get(key, float("nan")) for each in evaluations.values()]
            places = [index + 0.27 * (at - 1) for index in range(len(values))]
            axis.bar(places, values, width=0.25, label=f"cut after {cut}")
        axis.set_xticks(range(len(evaluations)), list(evaluations), rotation=60, ha="right", fontsize=8)
        axis.set_title(label, fontsize=9)
        axis.grid(axis="y", alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower right", ncols=3, fontsize=8)
    save_picture(figure, path)


def save_picture(figure: Figure, path: Path) -> None:
    """Writes a figure; raises DiskFullError if it cannot be written."""
    try:
        figure.savefig(path, dpi=100)
    except OSError as error:
        raise DiskFullError(f"The picture {path} cannot be written ({error.strerror}).") from None
