"""What operators see of this process: the port for metrics and health, from before the model is loaded to the end.

docs/operations.md has the table of all metrics. State: what is counted; the server that is observed, once there is one,
the newest look at it, and the event loop's newest beat. Invariant: a busy event loop makes what is shown older, never
the port silent.
"""

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moa_server.engine.observer import AnswerStep, FrameBytes, Observer, Resume
from moa_server.engine.planning.schedule import Rows
from moa_server.observing.http_port import HttpPage, HttpPort
from moa_server.service.host import Host
from moa_server.service.service import own_version
from moa_server.tls.listener import TlsListener

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


GAUGES = (
    ("moa_open_calls", "calls", "Conversations and answers whose call is open."),
    ("moa_queue_oldest_seconds", "oldest_wait", "How long some session has waited for its turn."),
    ("moa_kv_held_bytes", "kv_held", "Keys, values and memory rows that are held."),
    ("moa_kv_promised_bytes", "kv_promised", "What sessions hold or may come to hold."),
    ("moa_kv_running_bytes", "kv_running", "The part of running answers, which must stay."),
    ("moa_kv_budget_bytes", "kv_budget", "What all may hold together."),
    ("moa_keys", "keys", "API keys in force."),
    ("moa_draining", "draining", "1 while the server is going away."),
    ("moa_hanging", "hangs", "1 while a forward is stuck for longer than 30 s."),
    ("moa_tls_certificate_expiry_timestamp_seconds", "expires_at", "When the certificate ends."),
)


@dataclass(frozen=True, slots=True)
class Readings:
    """The state of a server at one moment.

    Args:
        sessions: with a running answer ("answering"), with a stream ("idle") and without one ("detached").
        calls: conversations and answers whose call is open; `connections`: that have made a call since the start.
        oldest_wait: seconds that some session has waited for its turn.
        kv_held: bytes of keys, values and memory rows; `kv_promised`: that sessions may come to hold; `kv_running`:
            those of running answers, which cannot be freed; `kv_budget`: for all.
        expires_at: of the certificate, seconds since 1970; None: the server has none.
        dropped: by the names of the drafters that draft here: whether they guessed worse than look-up.
    """

    sessions: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(("answering", "idle", "detached"), 0))
    calls: int = 0
    connections: int = 0
    oldest_wait: float = 0.0
    kv_held: int = 0
    kv_promised: int = 0
    kv_running: int = 0
    kv_budget: int = 0
    keys: int = 0
    draining: bool = False
    hangs: bool = False
    expires_at: float | None = None
    dropped: Mapping[str, bool] = field(default_factory=dict)

    def families(self) -> Iterator[Metric]:
        yield _labelled(
            "moa_sessions", "Sessions: with a running answer, with a stream, or waiting.", "state", self.sessions
        )
        yield CounterMetricFamily("moa_connections", "Connections that made a call.", value=self.connections)
        for name, reading, text in GAUGES:
            if (value := getattr(self, reading)) is not None:
                yield GaugeMetricFamily(name, text, value=float(value))
        dropped = "1 once a drafter has guessed worse than look-up: it is not asked any more."
        yield _labelled("moa_drafter_dropped", dropped, "drafter", self.dropped)


def read_host(host: Host, tls: TlsListener | None) -> Readings:
    """Reads a host; to be called on its event loop."""
    registry, pool, lifecycle, admission = host.services.registry, host.services.pool, host.lifecycle, host.admission
    lives, now, detached = registry.live_sessions, time.monotonic(), registry.detached
    answering = sum(not live.is_idle for live in lives)
    names = {each.fingerprint: each.name for each in host.services.served.drafters}
    return Readings(
        sessions={"answering": answering, "idle": max(0, len(lives) - detached - answering), "detached": detached},
        calls=lifecycle.calls,
        connections=admission.allowances.connections,
        oldest_wait=max((now - live.turn.queued_at for live in lives if live.turn.queued), default=0.0),
        kv_held=pool.held,
        kv_promised=pool.promised,
        kv_running=pool.running,
        kv_budget=pool.budget,
        keys=admission.gate.keys,
        draining=lifecycle.draining,
        hangs=lifecycle.hangs,
        expires_at=tls.certificate.expires_at.timestamp() if tls is not None else None,
        dropped={
            names[each.fingerprint]: bool(each.drafter.trial.is_dropped)
            for each in host.services.engine.stepper.sources
            if each.drafter is not None and each.fingerprint in names
        },
    )


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for each, value in values.items():
        family.add_metric([each], float(value))
    return family


BEAT_SECONDS = 0.1
LOOK_SECONDS = 0.5  # to wait for the event loop, before the look before is taken again
FRESH_SECONDS = 0.5  # a page of metrics is made at most so often, however many ask
Condition = tuple[bool, str]  # whether it holds, and why


@dataclass(frozen=True, slots=True)
class Signs:
    """Whether a server has started, is ready and is alive: three questions that are often taken for one.

    Args:
        started: the model is loaded and the port open.
        silent_seconds: since the event loop last turned; `stuck_seconds`: as of `Lifecycle`.
        hang_seconds: longer than this, either hangs.
    """

    started: bool
    draining: bool
    silent_seconds: float
    stuck_seconds: float
    hang_seconds: float

    def startup(self) -> Condition:
        """Whether the model is loaded: until then the other two say little."""
        return (True, "started") if self.started else (False, "the model is being loaded")

    def liveness(self) -> Condition:
        if self.silent_seconds > self.hang_seconds:
            return False, f"the event loop has not turned for {self.silent_seconds:.0f} s"
        if self.stuck_seconds > self.hang_seconds:
            return False, f"a forward has been stuck for {self.stuck_seconds:.0f} s"
        return True, "alive"

    def readiness(self) -> Condition:
        if not self.started:
            return self.startup()
        if self.draining:
            return False, "draining: running answers end, no new ones begin"
        return (True, "ready") if self.liveness()[0] else self.liveness()


class Observing(Collector):
    """The port of a process, and what it shows."""

    def __init__(self, metrics: Metrics, host: str, port: int, hang_seconds: float, names: Sequence[str] = ()) -> None:
        self.registry = metrics.registry
        self._lag = metrics.lag
        self._hang_seconds = hang_seconds
        self._began = time.monotonic()
        self._host: Host | None = None
        self._tls: TlsListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._newest: Readings | None = None
        self._due = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._last_beat: float | None = None  # time.monotonic
        ready = Gauge("moa_ready", "1 while new conversations are taken.", registry=self.registry)
        ready.set_function(lambda: self.signs.readiness()[0])
        self.registry.register(self)
        self._lock = threading.Lock()
        self._text, self._made_at = b"", 0.0
        pages = {
            "/metrics": self._metrics_page,
            "/livez": lambda: _page(self.signs.liveness()),
            "/readyz": lambda: _page(self.signs.readiness()),
            "/startupz": lambda: _page(self.signs.startup()),
        }
        self._port = HttpPort(host, port, pages, names)

    @property
    def port(self) -> int:
        return self._port.server_port

    def follow(self, host: Host, tls: TlsListener | None) -> None:
        """Shows a server that serves; to be called on its event loop."""
        served, seconds = host.services.served, time.monotonic() - self._began
        Gauge("moa_model_load_seconds", "How long loading the model took.", registry=self.registry).set(seconds)
        build = {
            "version": own_version(),
            "model": served.identity.target_id,
            "level": served.execution.level,
            "drafters": ",".join(each.name for each in served.drafters),
        }
        Gauge("moa_build_info", "What runs.", [*build], registry=self.registry).labels(**build).set(1)
        self._tls, self._loop = tls, asyncio.get_running_loop()
        self._newest = read_host(host, tls)
        self._host = host
        self._schedule(self._loop)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._port.stop()

    @property
    def signs(self) -> Signs:
        host = self._host
        return Signs(
            started=host is not None,
            draining=host is not None and host.lifecycle.draining,
            silent_seconds=time.monotonic() - self._last_beat if self._last_beat is not None else 0.0,
            stuck_seconds=host.lifecycle.stuck_seconds if host is not None else 0.0,
            hang_seconds=self._hang_seconds,
        )

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last_beat = now = time.monotonic()
        self._due = now + BEAT_SECONDS
        self._next = loop.call_later(BEAT_SECONDS, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lag.observe(max(0.0, time.monotonic() - self._due))
        self._schedule(loop)

    # ------------------------------------------------------------ on the port's threads

    def describe(self) -> list[Metric]:
        return []  # registering must not look at a server

    def collect(self) -> Iterator[Metric]:
        if (readings := self._look()) is not None:
            yield from readings.families()

    def _metrics_page(self) -> HttpPage:
        with self._lock:  # who comes meanwhile gets the same page
            if time.monotonic() - self._made_at > FRESH_SECONDS:
                self._text = generate_latest(self.registry)
                self._made_at = time.monotonic()
            return 200, self._text, CONTENT_TYPE_LATEST

    def _look(self) -> Readings | None:
        """Looks at the server on its event loop; the look before, if that is busy or has ended."""
        host, loop = self._host, self._loop
        if host is None or loop is None:
            return None
        done = threading.Event()

        def look() -> None:
            self._newest = read_host(host, self._tls)
            done.set()

        try:
            loop.call_soon_threadsafe(look)
        except RuntimeError:
            return self._newest  # the loop has ended
        done.wait(LOOK_SECONDS)
        return self._newest


def _page(condition: Condition) -> HttpPage:
    holds, reason = condition
    return 200 if holds else 503, f"{reason}\n".encode(), "text/plain; charset=utf-8"
