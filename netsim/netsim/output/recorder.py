"""How late releases were: a histogram with buckets 2 % wide, so that any number of packets costs the same memory."""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
import sys
from collections import deque
from pathlib import Path
from typing import IO, Any, NamedTuple

from netsim.core.link import Direction, Reason, Release, Verdict
from netsim.errors import AddressError
from netsim.profile.scenario import Scenario

_RATIO = math.log(1.02)
_FLOOR_S = 1e-6

MEDIAN_LIMIT_S = 0.3e-3
P99_LIMIT_S = 5e-3


class Lateness(NamedTuple):
    """Quantiles of lateness, in ms; `flagged` if the machine was too busy for the run to be trusted."""

    releases: int
    median_ms: float
    p99_ms: float
    max_ms: float
    flagged: bool


class LatenessHistogram:
    """A histogram of lateness, in seconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._max_s = 0.0

    def add(self, seconds: float) -> None:
        """One release that came so late (0 if it was on time)."""
        bucket = int(math.log(seconds / _FLOOR_S) / _RATIO) + 1 if seconds > _FLOOR_S else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._max_s = max(self._max_s, seconds)

    def quantile_s(self, share: float) -> float:
        """Upper edge of the bucket that holds the quantile; 0 if nothing was counted."""
        left = share * self._count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0.0:
                return min(_FLOOR_S * math.exp(bucket * _RATIO), self._max_s)
        return self._max_s

    def summary(self) -> Lateness:
        """Quantiles, and whether they are beyond the limits: median 0.3 ms, 99 % 5 ms."""
        median, p99 = self.quantile_s(0.5), self.quantile_s(0.99)
        flagged = median > MEDIAN_LIMIT_S or p99 > P99_LIMIT_S
        return Lateness(self._count, median * 1e3, p99 * 1e3, self._max_s * 1e3, flagged)


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
