"""What operators see of this process: the port for metrics and health, from before the model is loaded to the end.

State: the server that is observed, once there is one, the newest look at it, and the event loop's newest beat.
Invariant: a busy event loop makes what is shown older, never the port silent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moa_server.observing.http_port import HttpPage, HttpPort
from moa_server.observing.metrics import Metrics
from moa_server.service.host import Host
from moa_server.service.service import own_version
from moa_server.tls.listener import TlsListener

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
