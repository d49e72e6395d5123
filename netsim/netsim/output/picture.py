"""Draws a run's outputs as one picture. numpy and matplotlib are imported when it is drawn."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from netsim.core.conditions import DelaySpec, Truncation
from netsim.core.link import Direction
from netsim.errors import ReportError
from netsim.output.recorder import EVENTS, PACKETS, SUMMARY

COLOURS = {Direction.UP: "#b5651d", Direction.DOWN: "#1f5f99"}
DROP_COLOURS = {"loss": "#c0392b", "queue": "#8e6c8a", "outage": "#888888"}
LEAST_MS = 1.0  # of an axis: what is less is nothing to look at
MAX_POINTS = 3000  # of a curve: more than a screen is wide
MARKED = ("blackhole", "hold", "refuse", "reset", "fin", "change", "set", "heal", "upstream_refused")

OUTAGES = ("blackhole", "hold", "refuse")


@dataclass(slots=True)
class PacketTraffic:
    """Packets of one direction: those released, column by column, and the times of those dropped, by reason."""

    entered_s: list[float] = field(default_factory=list)
    released_s: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    queue_ms: list[float] = field(default_factory=list)
    delay_ms: list[float] = field(default_factory=list)
    drops_s: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class RunData:
    """Everything that a run left."""

    summary: dict[str, Any]
    events: list[dict[str, Any]]
    traffic: dict[Direction, PacketTraffic]

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of these kinds, in order of time."""
        return [event for event in self.events if event["kind"] in kinds]

    def outages(self) -> list[tuple[float, float, str]]:
        """(start, end, kind) of what kept traffic from passing; open ends are the run's, or a heal's."""
        heals = [event["t_s"] for event in self.of_kind("heal")]
        spans = []
        for event in self.of_kind(*OUTAGES):
            start = event["t_s"]
            until = event["until_s"]
            end = min([self.summary["duration_s"] if until is None else until, *(t for t in heals if t > start)])
            spans.append((start, end, event["kind"]))
        return spans

    def configured_mbps(self, direction: Direction) -> tuple[list[float], list[float | None]]:
        """Steps of the configured rate: times, and rates (None for no limit)."""
        steps = self.of_kind("conditions")
        return [event["t_s"] for event in steps], [event[direction]["rate_mbps"] for event in steps]

    def delay_specs(self, direction: Direction) -> tuple[list[float], list[DelaySpec]]:
        """Steps of the distribution that delays were drawn from: times, and distributions."""
        steps = self.of_kind("conditions")
        fields = [event[direction]["delay"] for event in steps]
        specs = [DelaySpec(**{**each, "truncation": Truncation(each["truncation"])}) for each in fields]
        return [event["t_s"] for event in steps], specs


def read_run(folder: Path) -> RunData:
    """The run in a folder; raises ReportError if that does not hold a finished run."""
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
        traffic = {direction: PacketTraffic() for direction in Direction}
        with gzip.open(folder / PACKETS, "rt") as stream:
            for row in csv.DictReader(stream):
                _add(traffic[Direction(row["direction"])], row)
    except OSError as error:
        raise ReportError(
            f"{folder} does not hold a finished run: {error.filename or folder}: {error.strerror or error}.",
            hint="A run writes its folder with --out and completes it when it ends.",
        ) from error
    except (ValueError, KeyError, EOFError) as error:
        raise ReportError(f"The outputs in {folder} are damaged: {error}.") from error
    return RunData(summary, events, traffic)


def _add(traffic: PacketTraffic, row: dict[str, str]) -> None:
    t = float(row["t_s"])
    if row["verdict"] != "released":
        traffic.drops_s.setdefault(row["verdict"], []).append(t)
        return
    traffic.entered_s.append(t)
    traffic.released_s.append(float(row["release_s"]))
    traffic.nbytes.append(int(row["bytes"]))
    traffic.queue_ms.append(float(row["queue_ms"]))
    traffic.delay_ms.append(float(row["delay_ms"]))


def draw_delay(axes: Any, run: RunData) -> None:
    """Distribution of the delays drawn, against the one configured."""
    for direction, traffic in run.traffic.items():
        if not traffic.delay_ms:
            continue
        median = float(np.median(traffic.delay_ms))
        values = np.sort(np.asarray(traffic.delay_ms))
        picked = _thin(len(values))
        axes.step(
            values[picked], (picked + 1) / len(values), where="post", color=COLOURS[direction],
            label=f"{direction}, median {median:.1f} ms",
        )  # fmt: skip
        grid = np.linspace(0.0, max(float(values[-1]) * 1.05, 1.0), 300)
        wanted = _expected(run, direction, grid)
        axes.plot(grid, wanted, color=COLOURS[direction], linestyle=":", linewidth=2, label=f"{direction}, target")
    axes.set(xlabel="delay (ms), queueing not included", ylabel="share of packets", title="Delay against its target")
    axes.set_ylim(0.0, 1.0)
    if not any(traffic.delay_ms for traffic in run.traffic.values()):
        _say_empty(axes, "no packet passed")
    _legend(axes)


def _expected(run: RunData, direction: Direction, grid: Any) -> Any:
    """The configured distribution; where it changed, the mixture in the shares of packets sent under each."""
    times, specs = run.delay_specs(direction)
    entered = np.asarray(run.traffic[direction].entered_s)
    step = np.clip(np.searchsorted(times, entered, side="right") - 1, 0, len(specs) - 1)
    packets: dict[DelaySpec, int] = {}
    for index, count in zip(*np.unique(step, return_counts=True), strict=True):
        packets[specs[index]] = packets.get(specs[index], 0) + int(count)
    total = np.zeros(len(grid))
    for spec, count in packets.items():
        total += np.asarray([spec.cdf(float(x)) for x in grid]) * count / len(entered)
    return total


def draw_rate(axes: Any, run: RunData) -> None:
    """Delivered rate by the second against the configured one, outages shaded."""
    duration = max(float(run.summary["duration_s"]), 1.0)
    edges = np.arange(0.0, np.ceil(duration) + 1.0)
    peak = 0.0
    for direction, traffic in run.traffic.items():
        bits, _ = np.histogram(traffic.released_s, bins=edges, weights=np.asarray(traffic.nbytes) * 8e-6)
        axes.stairs(bits, edges, color=COLOURS[direction], label=f"{direction}, delivered")
        peak = max(peak, float(bits.max(initial=0.0)))
        times, rates = run.configured_mbps(direction)
        known = [np.nan if rate is None else rate for rate in rates]
        if not np.all(np.isnan(known)):
            axes.step(
                [*times, duration], [*known, known[-1]], where="post", color=COLOURS[direction], linestyle=":",
                label=f"{direction}, configured",
            )  # fmt: skip
            peak = max(peak, float(np.nanmax(known)))
    axes.set(xlabel="time (s)", ylabel="Mbit/s, headers included", title="Configured and delivered rate")
    axes.set_ylim(0.0, peak * 1.1 or 1.0)
    _shade(axes, run)
    _legend(axes)


def draw_queue(axes: Any, run: RunData) -> None:
    """Time that packets spent in the queue and on the wire."""
    for direction, traffic in run.traffic.items():
        if traffic.entered_s:
            picked = _thin(len(traffic.entered_s))
            x, y = np.asarray(traffic.entered_s)[picked], np.asarray(traffic.queue_ms)[picked]
            axes.plot(x, y, ".", markersize=2, color=COLOURS[direction], label=f"{direction}")
    axes.set(xlabel="time (s)", ylabel="ms", title="Delay in the queue")
    longest = max((max(traffic.queue_ms, default=0.0) for traffic in run.traffic.values()), default=0.0)
    axes.set_ylim(0.0, 1.05 * max(longest, LEAST_MS))
    if not any(traffic.entered_s for traffic in run.traffic.values()):
        _say_empty(axes, "no packet passed")
    _shade(axes, run)
    _legend(axes)


def draw_losses(axes: Any, run: RunData) -> None:
    """Packets dropped each second, by reason, both directions together."""
    seconds = int(np.ceil(max(float(run.summary["duration_s"]), 1.0)))
    below = np.zeros(seconds)
    for reason, colour in DROP_COLOURS.items():
        times = [t for traffic in run.traffic.values() for t in traffic.drops_s.get(reason, [])]
        counted = Counter(min(int(t), seconds - 1) for t in times)
        heights = np.asarray([counted[second] for second in range(seconds)], dtype=float)
        axes.bar(np.arange(seconds) + 0.5, heights, bottom=below, color=colour, label=f"{reason} ({len(times)})")
        below += heights
    dropped = sum(len(times) for traffic in run.traffic.values() for times in traffic.drops_s.values())
    offered = dropped + sum(len(traffic.entered_s) for traffic in run.traffic.values())
    share = f" ({100 * dropped / offered:.2f} % of {offered:,})" if offered else ""
    axes.set(xlabel="time (s)", ylabel="packets a second", title=f"Packets dropped{share}")
    axes.set_ylim(0.0, max(1.0, 1.05 * float(below.max(initial=0.0))))
    if not dropped:
        _say_empty(axes, "no packet was dropped")
    _shade(axes, run)
    _legend(axes)


def draw_requests(axes: Any, run: RunData) -> None:
    """Latency of requests (first byte asked to first byte answered) with the events."""
    requests = run.of_kind("request")
    if requests:
        x = [event["t_s"] for event in requests]
        y = [event["latency_ms"] for event in requests]
        label = f"{len(requests)} requests, median {np.median(y):.1f} ms"
        axes.plot(x, y, ".", markersize=3, color="#2c3e50", label=label)
        axes.set_yscale("log")
        from matplotlib.ticker import LogLocator

        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    else:
        _say_empty(axes, "no requests (connections that talk both ways at once, such as gRPC's, have none)")
    _shade(axes, run)
    top = axes.get_ylim()[1]
    for event in run.of_kind(*MARKED):
        axes.axvline(event["t_s"], color="#c0392b", linewidth=0.8, alpha=0.6)
        axes.text(event["t_s"], top, f" {event['kind']}", rotation=90, va="top", fontsize=7, color="#c0392b")
    axes.set(xlabel="time (s)", ylabel="ms", title="Latency of requests")
    _legend(axes)


def _say_empty(axes: Any, text: str) -> None:
    """What a plot without anything to draw says instead."""
    axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
    axes.set_yticks([])


def _thin(count: int) -> Any:
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int))


def _shade(axes: Any, run: RunData) -> None:
    """The time axis, the same in every plot, with the outages on it."""
    axes.set_xlim(0.0, max(float(run.summary["duration_s"]), 1.0))
    for start, end, kind in run.outages():
        axes.axvspan(start, end, color="#c0392b" if kind == "blackhole" else "#e0a030", alpha=0.15, linewidth=0)


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


PLOTS = (draw_requests, draw_rate, draw_delay, draw_queue, draw_losses)


def draw_run(folder: Path, target: Path) -> None:
    """Writes the picture of the run in `folder` as a PNG.

    Raises:
        ReportError: it is no finished run, the target cannot be written, or matplotlib is not installed.
    """
    run = read_run(folder)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError(
            "A picture needs matplotlib, which is not installed.", hint="Install it: pip install matplotlib"
        ) from None
    figure = Figure(figsize=(8.0, 2.3 * len(PLOTS)), layout="constrained")
    for draw, axes in zip(PLOTS, figure.subplots(len(PLOTS)), strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes, run)
    figure.suptitle(heading(run.summary), fontsize=10)
    try:
        figure.savefig(target, dpi=80, format="png", metadata={"Software": None})
    except OSError as error:
        raise ReportError(f"{target} cannot be written: {error.strerror}.") from error


def heading(summary: dict[str, Any]) -> str:
    """Which run it is, and what limits its figures."""
    trace = " from a trace" if summary["trace"] else ""
    where = f"{summary['profile']['name']}{trace} over {summary['backend']}"
    lines = [f"{where}, seed {summary['seed']}, {summary['duration_s']:.1f} s"]
    if summary["approximate"]:
        lines.append("approximate: the proxy models TCP; the tun backend is the reference")
    if summary["lateness"]["flagged"]:
        lines.append("flagged: the machine was too busy, releases came late; do not trust the timings")
    return "\n".join(lines)
