"""Reads a run's folder back: summary, events, packets, ready to be drawn."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netsim.core.delay import DelaySpec, Truncation
from netsim.core.link import Direction
from netsim.errors import ReportError
from netsim.output.recorder import EVENTS, PACKETS, SUMMARY

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
