"""Draws a run's outputs as one picture. numpy and matplotlib are imported when it is drawn."""

import csv
import gzip
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netsim.core.link import Direction
from netsim.errors import NetsimError
from netsim.recorder import EVENTS, PACKETS, SUMMARY

COLOURS = {Direction.UP: "#b5651d", Direction.DOWN: "#1f5f99"}
DROP_COLOURS = {"loss": "#c0392b", "queue": "#8e6c8a", "outage": "#888888"}
LEAST_MS = 1.0  # of an axis: what is less is nothing to look at
OUTAGES = ("blackhole", "hold", "refuse")
MARKED = (*OUTAGES, "reset", "fin", "change", "set", "heal", "upstream_refused")


@dataclass(slots=True)
class RunData:
    summary: dict[str, Any]
    events: list[dict[str, Any]]
    released: dict[Direction, Any]  # [packets, (entered s, bytes, released s, queue ms, delay ms)]
    drops_s: dict[str, list[float]]  # by reason, both directions together

    @property
    def duration_s(self) -> float:
        return max(float(self.summary["duration_s"]), 1.0)

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] in kinds]


def read_run(folder: Path) -> RunData:
    """The run in a folder; raises NetsimError if that does not hold a finished run."""
    rows: dict[Direction, list[list[float]]] = {direction: [] for direction in Direction}
    drops: defaultdict[str, list[float]] = defaultdict(list)
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
        with gzip.open(folder / PACKETS, "rt") as stream:
            for t_s, direction, nbytes, verdict, *times in list(csv.reader(stream))[1:]:
                if verdict == "released":
                    rows[Direction(direction)].append(list(map(float, (t_s, nbytes, *times))))
                else:
                    drops[verdict].append(float(t_s))
    except OSError as error:
        raise NetsimError(
            f"{folder} does not hold a finished run: {error.filename or folder}: {error.strerror or error}.",
            hint="A run writes its folder with --out and completes it when it ends.",
        ) from error
    except (ValueError, EOFError) as error:
        raise NetsimError(f"The outputs in {folder} are damaged: {error}.") from error
    return RunData(summary, events, {each: np.reshape(np.array(rows[each]), (-1, 5)) for each in rows}, drops)


def draw_requests(axes: Any, run: RunData) -> None:
    """Latency of requests (first byte asked to first byte answered) with the events."""
    axes.set(ylabel="ms", title="Latency of requests")
    if requests := run.of_kind("request"):
        y = [event["latency_ms"] for event in requests]
        label = f"{len(requests)} requests, median {np.median(y):.1f} ms"
        axes.plot([event["t_s"] for event in requests], y, ".", markersize=3, color="#2c3e50", label=label)
        axes.set_yscale("log")
        from matplotlib.ticker import LogLocator

        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    else:
        _say_empty(axes, "no requests (connections that talk both ways at once, such as gRPC's, have none)")
    for event in run.of_kind(*MARKED):
        axes.axvline(event["t_s"], color="#c0392b", linewidth=0.8, alpha=0.6)
        top = axes.get_ylim()[1]
        axes.text(event["t_s"], top, f" {event['kind']}", rotation=90, va="top", fontsize=7, color="#c0392b")


def draw_rate(axes: Any, run: RunData) -> None:
    edges = np.arange(0.0, np.ceil(run.duration_s) + 1.0)
    steps, peak = run.of_kind("conditions"), 0.0
    for direction, packets in run.released.items():
        bits, _ = np.histogram(packets[:, 2], bins=edges, weights=packets[:, 1] * 8e-6)
        axes.stairs(bits, edges, color=COLOURS[direction], label=f"{direction}, delivered")
        rates = [np.nan if (rate := step[direction]["rate_mbps"]) is None else rate for step in steps]
        if not np.all(np.isnan(rates)):
            axes.step(
                [*(step["t_s"] for step in steps), run.duration_s], [*rates, rates[-1]], where="post",
                color=COLOURS[direction], linestyle=":", label=f"{direction}, configured",
            )  # fmt: skip
        peak = max(peak, float(np.nanmax([*bits, *rates, 0.0])))
    axes.set(ylabel="Mbit/s, headers included", title="Configured and delivered rate")
    axes.set_ylim(0.0, peak * 1.1 or 1.0)


def draw_queue(axes: Any, run: RunData) -> None:
    """Time that packets spent in the queue and on the wire."""
    longest = LEAST_MS
    for direction, packets in run.released.items():
        if len(packets):
            # No more points than a screen is wide.
            picked = packets[np.unique(np.linspace(0, len(packets) - 1, min(len(packets), 3000)).astype(int))]
            axes.plot(picked[:, 0], picked[:, 3], ".", markersize=2, color=COLOURS[direction], label=f"{direction}")
            longest = max(longest, float(packets[:, 3].max()))
    axes.set(ylabel="ms", title="Delay in the queue")
    axes.set_ylim(0.0, 1.05 * longest)
    if not any(map(len, run.released.values())):
        _say_empty(axes, "no packet passed")


def draw_losses(axes: Any, run: RunData) -> None:
    seconds = int(np.ceil(run.duration_s))
    below = np.zeros(seconds)
    for reason, colour in DROP_COLOURS.items():
        times = run.drops_s.get(reason, [])
        counted = Counter(min(int(t), seconds - 1) for t in times)
        heights = np.asarray([counted[second] for second in range(seconds)], dtype=float)
        axes.bar(np.arange(seconds) + 0.5, heights, bottom=below, color=colour, label=f"{reason} ({len(times)})")
        below += heights
    dropped = sum(map(len, run.drops_s.values()))
    offered = dropped + sum(map(len, run.released.values()))
    share = f" ({100 * dropped / offered:.2f} % of {offered:,})" if offered else ""
    axes.set(ylabel="packets a second", title=f"Packets dropped{share}")
    axes.set_ylim(0.0, max(1.0, 1.05 * float(below.max(initial=0.0))))
    if not dropped:
        _say_empty(axes, "no packet was dropped")


def _say_empty(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
    axes.set_yticks([])


def _add_time(axes: Any, run: RunData) -> None:
    """The time axis, with what kept traffic from passing; open ends are the run's, or a heal's."""
    axes.set_xlim(0.0, run.duration_s)
    axes.set_xlabel("time (s)")
    heals = [event["t_s"] for event in run.of_kind("heal")]
    for event in run.of_kind(*OUTAGES):
        until = run.summary["duration_s"] if event["until_s"] is None else event["until_s"]
        end = min([until, *(t for t in heals if t > event["t_s"])])
        colour = "#c0392b" if event["kind"] == "blackhole" else "#e0a030"
        axes.axvspan(event["t_s"], end, color=colour, alpha=0.15, linewidth=0)


PLOTS = (draw_requests, draw_rate, draw_queue, draw_losses)


def draw_run(folder: Path, target: Path) -> None:
    """Writes the picture of the run in `folder` as a PNG; raises NetsimError where that cannot be."""
    run = read_run(folder)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NetsimError(
            "A picture needs matplotlib, which is not installed.", hint="Install it: pip install matplotlib"
        ) from None
    figure = Figure(figsize=(8.0, 2.3 * len(PLOTS)), layout="constrained")
    for draw, axes in zip(PLOTS, figure.subplots(len(PLOTS)), strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes, run)
        _add_time(axes, run)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(heading(run.summary), fontsize=10)
    try:
        figure.savefig(target, dpi=80, format="png", metadata={"Software": None})
    except OSError as error:
        raise NetsimError(f"{target} cannot be written: {error.strerror}.") from error


def heading(summary: dict[str, Any]) -> str:
    trace = " from a trace" if summary["trace"] else ""
    where = f"{summary['profile']['name']}{trace} over {summary['backend']}"
    lines = [f"{where}, seed {summary['seed']}, {summary['duration_s']:.1f} s"]
    if summary["approximate"]:
        lines.append("approximate: the proxy models TCP; the tun backend is the reference")
    if summary["lateness"]["flagged"]:
        lines.append("flagged: the machine was too busy, releases came late; do not trust the timings")
    return "\n".join(lines)
