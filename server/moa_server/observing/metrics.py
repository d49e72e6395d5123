"""What has happened since the start, in plain numbers.

Written on the event loop alone; another thread may read, and finds each number whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import (
    AuthenticationError,
    ConfigError,
    ContextLengthError,
    ForbiddenError,
    InternalError,
    MismatchError,
    OverloadedError,
    ProtocolError,
    RateLimitError,
    UnavailableError,
)
from moa_shared.protocol.finish_rule import Finish

from moa_server.engine.observer import AnswerStep, FrameBytes, Observer, Resume
from moa_server.engine.planning.schedule import Rows
from moa_server.observing.histogram import Histogram

ROWS = (1, 8, 32, 128)  # upper ends of the groups of forwards by rows
ROW_LABELS = ("1", "2-8", "9-32", "33-128", "129+")
FORWARD_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
BATCH = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
DEVICE, SERVER = "device", "server"
METHODS = tuple(pb.DESCRIPTOR.services_by_name["Moa"].methods_by_name)
FINISHES = tuple(finish for finish in Finish if finish is not Finish.UNFINISHED)
REFUSALS = (AuthenticationError, ForbiddenError, RateLimitError, OverloadedError, UnavailableError, ProtocolError)
CODES = tuple(error.code for error in (*REFUSALS, MismatchError, ContextLengthError, ConfigError, InternalError))
LEVELS = ("debug", "info", "warning", "error", "critical")


class Metrics(Observer):
    """Counts since the start."""

    def __init__(self) -> None:
        self.forwards = tuple(Histogram(FORWARD_SECONDS) for _ in ROW_LABELS)  # by rows
        self.batch = Histogram(BATCH)
        self.waits = Histogram(WAIT_SECONDS)
        self.lag = Histogram(LAG_SECONDS)
        self.drafting_seconds = 0.0
        self.read = self.written = self.steps = self.run_ahead = self.stale = self.lost = 0
        self.drafted = {DEVICE: 0, SERVER: 0}
        self.accepted = {DEVICE: 0, SERVER: 0}
        # All names from the start: a rate needs a zero before the first event.
        self.finishes: dict[Finish, int] = dict.fromkeys(FINISHES, 0)
        self.calls = dict.fromkeys(METHODS, 0)
        self.resumes = dict.fromkeys(Resume, 0)
        self.sent = dict.fromkeys((FrameBytes.VERDICTS, FrameBytes.MEMORY, FrameBytes.STATE), 0)
        self.received = dict.fromkeys((FrameBytes.DRAFTS, FrameBytes.REQUESTS), 0)
        self.refusals = Counter(dict.fromkeys(CODES, 0))
        self.log_events = dict.fromkeys(LEVELS, 0)

    def on_planned(self, waits: Sequence[float]) -> None:
        for seconds in waits:
            self.waits.add(seconds)

    def on_forward(self, rows: Rows, step_ms: float, drafting_ms: float) -> None:
        count = rows.fed + rows.nodes + rows.read
        self.forwards[bisect_left(ROWS, count)].add(1e-3 * step_ms)
        self.batch.add(rows.answers)
        self.drafting_seconds += 1e-3 * drafting_ms
        self.read += rows.read + rows.fed - rows.answers

    def on_step(self, step: AnswerStep) -> None:
        self.steps += 1
        self.run_ahead += step.runs_ahead
        self.written += step.tokens
        self.stale += step.stale
        self.drafted[DEVICE] += step.drafted
        self.drafted[SERVER] += step.own_drafted
        self.accepted[DEVICE] += step.accepted
        self.accepted[SERVER] += step.own_accepted

    def on_finish(self, finish: Finish) -> None:
        self.finishes[finish] += 1

    def on_lost(self) -> None:
        self.lost += 1

    def on_call(self, method: str) -> None:
        self.calls[method] += 1

    def on_refusal(self, code: str) -> None:
        self.refusals[code] += 1

    def on_resume(self, kind: Resume) -> None:
        self.resumes[kind] += 1

    def on_sent(self, kind: FrameBytes, count: int) -> None:
        self.sent[kind] += count

    def on_received(self, kind: FrameBytes, count: int) -> None:
        self.received[kind] += count

    def on_log(self, level: str) -> None:
        """A line was logged."""
        if level in self.log_events:
            self.log_events[level] += 1
