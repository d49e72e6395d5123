"""Writes a run's outputs. Without a folder it only counts.

Packets are kept as tuples and written when the loop is idle: formatting 30,000 rows a second while packets are due
would make them late. Invariant: `finish` leaves all three files complete.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
from collections import deque
from pathlib import Path
from typing import IO, Any

from netsim.core.link import Direction, Reason, Release, Verdict
from netsim.errors import AddressError
from netsim.output.lateness import LatenessHistogram
from netsim.profile.scenario import Scenario

EVENTS, PACKETS, SUMMARY = "events.jsonl", "packets.csv.gz", "summary.json"
PACKET_COLUMNS = ("t_s", "direction", "bytes", "verdict", "release_s", "queue_ms", "delay_ms")
IDLE_ROWS = 64  # about 0.1 ms of formatting
MAX_WAITING_ROWS = 300_000  # some 50 MB; beyond it rows are written even when packets are due

Row = tuple[float, Direction, int, Verdict]


# How HTTP/2, and so gRPC, begins: both sides talk at once, so nothing is the answer to anything.
BOTH_WAYS = b"PRI * HTTP/2"


class RunRecorder:
    """Counts a run's packets and writes its files."""

    def __init__(self, folder: Path | None) -> None:
        self.lateness = LatenessHistogram()
        self.records_packets = folder is not None
        self._folder = folder
        self._waiting: deque[Row] = deque()
        self._counts: dict[Direction, dict[str, int]] = {
            direction: {"packets": 0, "bytes": 0, **{f"dropped_{reason}": 0 for reason in Reason}}
            for direction in Direction
        }
        self._events: IO[str] | None = None
        self._packets: IO[str] | None = None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._events = (folder / EVENTS).open("w")
                self._packets = gzip.open(folder / PACKETS, "wt", compresslevel=1)  # noqa: SIM115 - closed by finish
            except OSError as error:
                raise AddressError(f"Output folder {folder} cannot be written: {error.strerror}.") from error
            self._packets.write(",".join(PACKET_COLUMNS) + "\n")

    def packet(self, direction: Direction, t: float, nbytes: int, verdict: Verdict) -> None:
        """A verdict of a link model (this is its observer)."""
        counts = self._counts[direction]
        if isinstance(verdict, Release):
            counts["packets"] += 1
            counts["bytes"] += nbytes
        else:
            counts[f"dropped_{verdict.reason}"] += 1
        if self._packets is not None:
            self._waiting.append((t, direction, nbytes, verdict))
            if len(self._waiting) > MAX_WAITING_ROWS:
                self.flush(MAX_WAITING_ROWS // 10)

    def event(self, t: float, kind: str, **fields: Any) -> None:
        """One line of events.jsonl."""
        if self._events is not None:
            self._events.write(json.dumps({"t_s": round(t, 6), "kind": kind, **fields}) + "\n")
            if kind != "request":  # the only frequent one; the others can be read during the run
                self._events.flush()

    def flush(self, rows: int = IDLE_ROWS) -> bool:
        """Writes up to `rows` packets; False if none waits."""
        if self._packets is None or not self._waiting:
            return False
        lines = [_line(*self._waiting.popleft()) for _ in range(min(rows, len(self._waiting)))]
        self._packets.write("".join(lines))
        return bool(self._waiting)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Packets, bytes and drops by direction."""
        return {str(direction): dict(counts) for direction, counts in self._counts.items()}

    def finish(self, scenario: Scenario, backend: str, duration_s: float, **extra: Any) -> dict[str, Any]:
        """Writes what is left and summary.json; returns the summary."""
        summary = {
            "netsim": 1,
            "backend": backend,
            "approximate": backend == "proxy",
            "seed": scenario.seed,
            "duration_s": round(duration_s, 3),
            "profile": scenario.profile.document(),
            "trace": None if scenario.trace is None else {"rows": len(scenario.trace.rows), "loop": scenario.loop},
            "effective_delay_ms": effective_delay(scenario),
            "lateness": self.lateness.summary()._asdict(),
            "directions": self.counts,
            "kernel": platform.release(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "command": sys.argv,
            **extra,
        }
        while self.flush(10_000):
            pass
        if self._folder is not None and self._events is not None and self._packets is not None:
            self._events.close()
            self._packets.close()
            (self._folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
        return summary


def effective_delay(scenario: Scenario) -> dict[str, dict[str, float]]:
    """Mean and deviation of each direction's delay as drawn, at the start of the run."""
    moments = {direction: scenario.profile.conditions(direction).delay.effective() for direction in Direction}
    return {
        str(direction): {"mean": round(value.mean_ms, 3), "deviation": round(value.deviation_ms, 3)}
        for direction, value in moments.items()
    }


def _line(t: float, direction: Direction, nbytes: int, verdict: Verdict) -> str:
    if isinstance(verdict, Release):
        times = f"{verdict.t:.6f},{verdict.queue_s * 1e3:.3f},{verdict.delay_s * 1e3:.3f}"
        return f"{t:.6f},{direction},{nbytes},released,{times}\n"
    return f"{t:.6f},{direction},{nbytes},{verdict.reason},,,\n"
