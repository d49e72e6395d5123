"""Draws a batch: time to the right, a lane for each session, a box for each row of each forward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_bench.report.pictures import new_pyplot, save

if TYPE_CHECKING:
    from moa_bench.timeline.batch import Batch, BatchForward, LaneRows

BOX_MS = 4.4  # width of a row: the longest draft fits its forward
HEIGHT = 0.46
COUNT = -0.62  # where the rows of a forward are counted
FED, READ = "#555555", "#b8b8b8"
DEVICE, DEVICE_REFUSED = "#2a78b5", "#b5d3e9"
SERVER, SERVER_REFUSED = "#c0392b", "#efbfb8"
FORWARD, DRAFTING = "#f4f4f4", "#f7dcd8"


def draw(batch: Batch, titles: Sequence[str], out: Path) -> None:
    """One panel.

    Args:
        titles: of the lanes, from the top.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(14, 0.8 * len(titles) + 1.5))
    for forward in batch.forwards:
        _forward(panel, forward)
    for lane, at_ms in batch.frames:
        panel.plot([at_ms], [lane + 0.34], marker="^", markersize=4, color=DEVICE, markeredgewidth=0)
    panel.set_yticks([COUNT, *range(len(titles))], ["rows of the forward", *titles])
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(len(titles) - 0.4, -0.85)
    panel.set_xlim(0, batch.forwards[-1].ended_ms)
    panel.set_xlabel("ms")
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    _legend(figure)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save(figure, out)


def _forward(panel: Any, forward: BatchForward) -> None:
    step_begins_ms = forward.began_ms + forward.drafting_ms
    panel.axvspan(forward.began_ms, step_begins_ms, color=DRAFTING, linewidth=0)
    panel.axvspan(step_begins_ms, forward.ended_ms - 1.5, color=FORWARD, linewidth=0)
    count = sum(rows.fed + rows.read + rows.nodes for rows in forward.rows)
    middle_ms = (step_begins_ms + forward.ended_ms) / 2
    panel.text(middle_ms, COUNT, str(count), ha="center", va="center", fontsize=7, color=FED)
    for rows in forward.rows:
        _lane(panel, rows, step_begins_ms, forward.ended_ms)


def _lane(panel: Any, rows: LaneRows, begins_ms: float, ends_ms: float) -> None:
    left_ms = begins_ms + 1.0
    if rows.read:
        width_ms = ends_ms - begins_ms - 3.5
        panel.barh(rows.lane, width_ms, left=left_ms, height=HEIGHT, color=READ)
        panel.text(left_ms + width_ms / 2, rows.lane, str(rows.read), ha="center", va="center", fontsize=7)
    colours = [FED] * rows.fed + node_colours(rows)
    for place, colour in enumerate(colours):
        left = left_ms + BOX_MS * place
        panel.barh(rows.lane, BOX_MS, left=left, height=HEIGHT, color=colour, edgecolor="white", linewidth=0.6)
    if rows.taken:
        end = " end" if rows.ends else ""
        panel.text(left_ms, rows.lane - 0.24, f"+{rows.taken}{end}", ha="left", va="bottom", fontsize=7)


def node_colours(rows: LaneRows) -> list[str]:
    """Of each node, by who guessed it and whether it was committed."""
    of_device = rows.nodes - rows.own
    colours = []
    for node in range(rows.nodes):
        right, wrong = (DEVICE, DEVICE_REFUSED) if node < of_device else (SERVER, SERVER_REFUSED)
        colours.append(right if node in rows.accepted else wrong)
    return colours


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(color=FED, label="newest token"),
            Patch(color=DEVICE, label="device's node, committed"),
            Patch(color=DEVICE_REFUSED, label="refused"),
            Patch(color=SERVER, label="server's node, committed"),
            Patch(color=SERVER_REFUSED, label="refused"),
            Patch(color=READ, label="slice of a prompt"),
            Patch(color=DRAFTING, label="the server drafts"),
            Line2D([], [], marker="^", linestyle="", markersize=5, color=DEVICE, label="nodes arrive"),
        ],
        loc="lower center",
        ncols=8,
        fontsize=8,
        frameon=False,
    )
