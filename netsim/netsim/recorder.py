"""What a run leaves: events.jsonl, packets.csv.gz and summary.json, with counts and how late releases were."""

import gzip
import json
import math
import os
import platform
import sys
from collections import deque
from pathlib import Path
from typing import IO, Any

from netsim.core.link import Direction, Reason, Release, Verdict
from netsim.errors import UsageError
from netsim.profiles import Scenario

MEDIAN_LIMIT_S = 0.3e-3
P99_LIMIT_S = 5e-3
_RATIO = math.log(1.02)
_FLOOR_S = 1e-6


class LatenessHistogram:
    """A histogram of lateness, with buckets 2 % wide, so that any number of packets costs the same memory."""

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

    def summary(self) -> dict[str, float]:
        """Quantiles in ms; flagged if the machine was too busy for the run to be trusted."""
        median, p99 = self.quantile_s(0.5), self.quantile_s(0.99)
        flagged = median > MEDIAN_LIMIT_S or p99 > P99_LIMIT_S
        quantiles = {"median_ms": median * 1e3, "p99_ms": p99 * 1e3, "max_ms": self._max_s * 1e3}
        return {"releases": self._count, **quantiles, "flagged": flagged}


EVENTS, PACKETS, SUMMARY = "events.jsonl", "packets.csv.gz", "summary.json"
IDLE_ROWS = 64  # about 0.1 ms of formatting
MAX_WAITING_ROWS = 300_000  # some 50 MB; beyond it rows are written even when packets are due

# How HTTP/2, and so gRPC, begins: both sides talk at once, so nothing is the answer to anything.
BOTH_WAYS = b"PRI * HTTP/2"


class RunRecorder:
    """Counts a run's packets and writes its files."""

    def __init__(self, folder: Path | None) -> None:
        self.lateness = LatenessHistogram()
        self.records_packets = folder is not None
        self._folder = folder
        self._waiting: deque[tuple[float, Direction, int, Verdict]] = deque()
        self.counts: dict[str, dict[str, int]] = {
            str(direction): {"packets": 0, "bytes": 0, **{f"dropped_{reason}": 0 for reason in Reason}}
            for direction in Direction
        }
        self._asked: dict[int, float] = {}  # when, by connection
        self._both_ways: set[int] = set()  # connections without requests
        self._events: IO[str] | None = None
        self._packets: IO[str] | None = None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._events = (folder / EVENTS).open("w")
                self._packets = gzip.open(folder / PACKETS, "wt", compresslevel=1)  # noqa: SIM115 - closed by finish
            except OSError as error:
                raise UsageError(f"Output folder {folder} cannot be written: {error.strerror}.") from error
            self._packets.write("t_s,direction,bytes,verdict,release_s,queue_ms,delay_ms\n")

    def packet(self, direction: Direction, t: float, nbytes: int, verdict: Verdict) -> None:
        """A verdict of a link model (this is its observer)."""
        counts = self.counts[direction]
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

    def question(self, connection: int, t: float, data: bytes) -> None:
        """A client sends, which begins a request unless one is open."""
        if data.startswith(BOTH_WAYS):
            self._both_ways.add(connection)
        if connection not in self._both_ways:
            self._asked.setdefault(connection, t)

    def answer(self, connection: int, t: float) -> None:
        """Bytes reach the client, which end its request."""
        if (asked_at := self._asked.pop(connection, None)) is not None:
            self.event(asked_at, "request", connection=connection, latency_ms=round((t - asked_at) * 1e3, 3))

    def flush(self, rows: int = IDLE_ROWS) -> bool:
        """Writes up to `rows` packets; False if none waits."""
        if self._packets is None or not self._waiting:
            return False
        lines = [_line(*self._waiting.popleft()) for _ in range(min(rows, len(self._waiting)))]
        self._packets.write("".join(lines))
        return bool(self._waiting)

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
            "effective_delay_ms": {
                str(direction): {"mean": round(drawn.mean_ms, 3), "deviation": round(drawn.deviation_ms, 3)}
                for direction in Direction
                for drawn in [scenario.profile.conditions(direction).delay.effective()]
            },
            "lateness": self.lateness.summary(),
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


def _line(t: float, direction: Direction, nbytes: int, verdict: Verdict) -> str:
    if isinstance(verdict, Release):
        times = f"{verdict.t:.6f},{verdict.queue_s * 1e3:.3f},{verdict.delay_s * 1e3:.3f}"
        return f"{t:.6f},{direction},{nbytes},released,{times}\n"
    return f"{t:.6f},{direction},{nbytes},{verdict.reason},,,\n"
