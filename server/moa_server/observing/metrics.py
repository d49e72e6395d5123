"""What has happened since the start, counted for Prometheus. docs/operations.md has the table of all metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

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
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics

from moa_server.engine.observer import AnswerStep, FrameBytes, Observer, Resume
from moa_server.engine.planning.schedule import Rows

ROWS = (1, 8, 32, 128)  # upper ends of the groups of forwards by rows
ROW_LABELS = ("1", "2-8", "9-32", "33-128", "129+")
FORWARD_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
BATCH = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
DEVICE, SERVER = "device", "server"
METHODS = tuple(pb.DESCRIPTOR.services_by_name["Moa"].methods_by_name)
REFUSALS = (AuthenticationError, ForbiddenError, RateLimitError, OverloadedError, UnavailableError, ProtocolError)
CODES = tuple(error.code for error in (*REFUSALS, MismatchError, ContextLengthError, ConfigError, InternalError))
LEVELS = ("debug", "info", "warning", "error", "critical")
DIRECTIONS = {
    "sent": (FrameBytes.VERDICTS, FrameBytes.MEMORY, FrameBytes.STATE),
    "received": (FrameBytes.DRAFTS, FrameBytes.REQUESTS),
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter began when the process did


class Metrics(Observer):
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        forwards = "How long forwards took, by how many rows they had."
        self._forwards = Histogram(
            "moa_forward_seconds", forwards, ["rows"], registry=self.registry, buckets=FORWARD_SECONDS
        )
        for rows in ROW_LABELS:
            self._forwards.labels(rows)
        self._batch = self._histogram("moa_forward_answers", "Answers in a forward.", BATCH)
        self._waits = self._histogram(
            "moa_queue_wait_seconds", "How long sessions waited for their turn.", WAIT_SECONDS
        )
        self.lag = self._histogram(
            "moa_event_loop_lag_seconds", "How late the event loop came to a timer.", LAG_SECONDS
        )
        self._drafting_seconds = self._counter("moa_server_drafting_seconds", "Time that the server drafted.")
        self._read = self._counter("moa_tokens_read", "Tokens of prompts that were computed.")
        self._written = self._counter("moa_tokens_written", "Tokens of answers.")
        origins = ("origin", (DEVICE, SERVER))
        self._drafted = self._counter("moa_drafted_nodes", "Draft nodes verified.", *origins)
        self._accepted = self._counter("moa_accepted_nodes", "Draft nodes that became text.", *origins)
        self._stale = self._counter("moa_stale_nodes", "Draft nodes of devices that came too late.")
        self._steps = self._counter("moa_answer_steps", "Steps of answers.")
        run_ahead = "Those of them that verified no draft of a device that drafts."
        self._run_ahead = self._counter("moa_run_ahead_steps", run_ahead)
        finishes = [finish.name.lower() for finish in Finish if finish is not Finish.UNFINISHED]
        self._finishes = self._counter("moa_answers", "Answers that have ended, by why.", "finish", finishes)
        self._lost = self._counter("moa_sessions_lost", "Sessions that an error ended.")
        self._calls = self._counter("moa_calls", "Calls that have begun.", "method", METHODS)
        self._refusals = self._counter("moa_refusals", "Calls that ended with an error, by its code.", "code", CODES)
        self._resumes = self._counter("moa_resumes", "Clients that came back, by what they found.", "kind", Resume)
        self._frames = Counter(
            "moa_frame_bytes", "Bytes of conversations' frames.", ["direction", "plane"], registry=self.registry
        )
        for direction, planes in DIRECTIONS.items():
            for plane in planes:
                self._frames.labels(direction, plane)
        self._log_events = self._counter("moa_log_events", "Lines of the log.", "level", LEVELS)
        ProcessCollector(registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=bounds)

    def _counter(self, name: str, text: str, label: str = "", values: Iterable[str] = ()) -> Counter:
        """A counter with all its labels from the start: a rate needs a zero before the first event."""
        counter = Counter(name, text, [label] if label else [], registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def on_planned(self, waits: Sequence[float]) -> None:
        for seconds in waits:
            self._waits.observe(seconds)

    def on_forward(self, rows: Rows, step_ms: float, drafting_ms: float) -> None:
        count = rows.fed + rows.nodes + rows.read
        self._forwards.labels(ROW_LABELS[bisect_left(ROWS, count)]).observe(1e-3 * step_ms)
        self._batch.observe(rows.answers)
        self._drafting_seconds.inc(1e-3 * drafting_ms)
        self._read.inc(rows.read + rows.fed - rows.answers)

    def on_step(self, step: AnswerStep) -> None:
        self._steps.inc()
        self._run_ahead.inc(step.runs_ahead)
        self._written.inc(step.tokens)
        self._stale.inc(step.stale)
        self._drafted.labels(DEVICE).inc(step.drafted)
        self._drafted.labels(SERVER).inc(step.own_drafted)
        self._accepted.labels(DEVICE).inc(step.accepted)
        self._accepted.labels(SERVER).inc(step.own_accepted)

    def on_finish(self, finish: Finish) -> None:
        self._finishes.labels(finish.name.lower()).inc()

    def on_lost(self) -> None:
        self._lost.inc()

    def on_call(self, method: str) -> None:
        self._calls.labels(method).inc()

    def on_refusal(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def on_resume(self, kind: Resume) -> None:
        self._resumes.labels(kind).inc()

    def on_sent(self, kind: FrameBytes, count: int) -> None:
        self._frames.labels("sent", kind).inc(count)

    def on_received(self, kind: FrameBytes, count: int) -> None:
        self._frames.labels("received", kind).inc(count)

    def on_log(self, level: str) -> None:
        if level in LEVELS:
            self._log_events.labels(level).inc()
