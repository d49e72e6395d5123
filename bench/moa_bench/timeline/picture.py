"""Draws recorded answers: the client's draft steps above, the server's forwards below, and the frames between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moa_bench.network.emulated import Link
from moa_bench.report.pictures import new_pyplot, save
from moa_bench.timeline.timeline import TITLES, Timeline

SECONDS = 0.9  # of an answer: a dozen forwards, which can still be told apart
CLIENT, SERVER = 1.0, 0.0  # heights of the two lanes
COLOURS = {"draft": "#2a78b5", "verdict": "#c0392b", "memory": "#b8b8b8", "ack": "#9ec5e0", "credit": "#dce8f2"}
PLAIN, VERIFYING = "#e9a99f", "#c0392b"


def draw(timelines: Sequence[Timeline], link: Link, out: Path) -> None:
    """One panel for each answer.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, panels = pyplot.subplots(len(timelines), 1, figsize=(12, 2.6 * len(timelines)), squeeze=False, sharex=True)
    for panel, timeline in zip(panels[:, 0], timelines, strict=True):
        _panel(panel, timeline.span(SECONDS), link.delay_ms / 1e3)
    panels[-1, 0].set_xlabel("ms")
    _legend(figure)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    save(figure, out)


def _panel(panel: Any, timeline: Timeline, delay_s: float) -> None:
    tokens = sum(note.tokens for note in timeline.notes if note.kind == "verdict")
    panel.set_title(f"{TITLES[timeline.way]}: {tokens} tokens in {SECONDS * 1e3:.0f} ms", fontsize=10, loc="left")
    for begin, end in timeline.drafting:
        panel.barh(
            CLIENT, 1e3 * (end - begin), left=1e3 * begin, height=0.16, color=COLOURS["draft"], edgecolor="white"
        )
    for note in timeline.notes:
        colour = COLOURS.get(note.kind)
        if colour is None:
            continue
        there = note.at_s + delay_s if note.up else note.at_s - delay_s  # when it was at the server
        ends = (CLIENT - 0.08, SERVER + 0.1) if note.up else (SERVER + 0.1, CLIENT - 0.08)
        times = (note.at_s, there) if note.up else (there, note.at_s)
        panel.annotate(
            "",
            xy=(1e3 * times[1], ends[1]),
            xytext=(1e3 * times[0], ends[0]),
            arrowprops={"arrowstyle": "->", "color": colour, "lw": 0.7 if note.kind in ("memory", "credit") else 1.2},
        )
        if note.kind == "verdict":
            done = 1e3 * there
            panel.barh(
                SERVER,
                note.step_ms,
                left=done - note.step_ms,
                height=0.2,
                color=VERIFYING if note.verified else PLAIN,
                edgecolor="white",
            )
            panel.text(done - note.step_ms / 2, SERVER, f"{note.tokens}", ha="center", va="center", fontsize=7)
    panel.set_yticks([CLIENT, SERVER], ["client", "server"])
    panel.set_ylim(-0.25, 1.25)
    panel.set_xlim(-1e3 * delay_s - 20, 1e3 * SECONDS)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(color=COLOURS["draft"], label="draft step"),
            Patch(color=PLAIN, label="plain step"),
            Patch(color=VERIFYING, label="forward that verifies (tokens it brought)"),
            Line2D([], [], color=COLOURS["draft"], label="uplink: drafts"),
            Line2D([], [], color=COLOURS["verdict"], label="downlink: verdicts"),
            Line2D([], [], color=COLOURS["memory"], label="downlink: memory"),
        ],
        loc="lower center",
        ncols=6,
        fontsize=8,
        frameon=False,
    )
