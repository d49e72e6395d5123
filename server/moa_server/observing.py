"""What operators see of this process: the port for metrics and health, from before the model is loaded to the end.

docs/operations.md has the table of all metrics. State: what is counted; the server that is observed, once there is one,
the newest look at it, and the event loop's newest beat. Invariant: a busy event loop makes what is shown older, never
the port silent.
"""

import asyncio
import contextlib
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import CATALOGUE
from moa_shared.programs.addresses import ip_of
from moa_shared.protocol.messages import Finish
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moa_server.addresses import METRICS_OPTIONS, cannot_listen
from moa_server.engine.live_session import AnswerSteps, FrameBytes, Observer, Resume
from moa_server.engine.registry import SessionRegistry
from moa_server.engine.schedule import Rows
from moa_server.service.host import Host
from moa_server.service.service import own_version
from moa_server.tls import TlsListener

ROWS = (1, 8, 32, 128)  # upper ends of the groups of forwards by rows
ROW_LABELS = ("1", "2-8", "9-32", "33-128", "129+")
FORWARD_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
BATCH = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
ORIGINS = ("device", "server")
METHODS = tuple(pb.DESCRIPTOR.services_by_name["Moa"].methods_by_name)
SENT = (FrameBytes.VERDICTS, FrameBytes.MEMORY, FrameBytes.STATE)
LEVELS = ("debug", "info", "warning", "error", "critical")

disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter began when the process did


class Metrics(Observer):
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        histogram, counter = partial(Histogram, registry=self.registry), self._counter
        took, waited = "How long forwards took, by how many rows they had.", "How long sessions waited for their turn."
        forwards = histogram("moa_forward_seconds", took, ["rows"], buckets=FORWARD_SECONDS)
        self._forwards = [forwards.labels(rows) for rows in ROW_LABELS]
        self._batch = histogram("moa_forward_answers", "Answers in a forward.", buckets=BATCH)
        self._waits = histogram("moa_queue_wait_seconds", waited, buckets=WAIT_SECONDS)
        late = "How late the event loop came to a timer."
        self.lag = histogram("moa_event_loop_lag_seconds", late, buckets=LAG_SECONDS)
        self._drafting_seconds = counter("moa_server_drafting_seconds", "Time that the server drafted.")
        self._read = counter("moa_tokens_read", "Tokens of prompts that were computed.")
        self._written = counter("moa_tokens_written", "Tokens of answers.")
        drafted = counter("moa_drafted_nodes", "Draft nodes verified.", "origin", ORIGINS)
        self._drafted, self._own_drafted = (drafted.labels(each) for each in ORIGINS)
        accepted = counter("moa_accepted_nodes", "Draft nodes that became text.", "origin", ORIGINS)
        self._accepted, self._own_accepted = (accepted.labels(each) for each in ORIGINS)
        self._stale = counter("moa_stale_nodes", "Draft nodes of devices that came too late.")
        self._steps = counter("moa_answer_steps", "Steps of answers.")
        run_ahead = "Those of them that verified no draft of a device that drafts."
        self._run_ahead = counter("moa_run_ahead_steps", run_ahead)
        finishes = [finish.name.lower() for finish in Finish if finish is not Finish.UNFINISHED]
        self._finishes = counter("moa_answers", "Answers that have ended, by why.", "finish", finishes)
        self._lost = counter("moa_sessions_lost", "Sessions that an error ended.")
        self._calls = counter("moa_calls", "Calls that have begun.", "method", METHODS)
        self._refusals = counter("moa_refusals", "Calls that ended with an error, by its code.", "code", CATALOGUE)
        self._resumes = counter("moa_resumes", "Clients that came back, by what they found.", "kind", Resume)
        planes = ["direction", "plane"]
        frames = Counter("moa_frame_bytes", "Bytes of conversations' frames.", planes, registry=self.registry)
        self._sent = {each: frames.labels("sent", each) for each in SENT}
        self._received = {each: frames.labels("received", each) for each in FrameBytes if each not in SENT}
        self._log_events = counter("moa_log_events", "Lines of the log.", "level", LEVELS)
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, label: str = "", values: Iterable[str] = ()) -> Counter:
        """A counter with all its labels from the start: a rate needs a zero before the first event."""
        counter = Counter(name, text, [label] if label else [], registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def on_planned(self, waits: Sequence[float]) -> None:
        for seconds in waits:
            self._waits.observe(seconds)

    def on_forward(self, rows: Rows, step_ms: float, drafting_ms: float, steps: AnswerSteps) -> None:
        count = rows.fed + rows.nodes + rows.read
        self._forwards[bisect_left(ROWS, count)].observe(1e-3 * step_ms)
        self._batch.observe(rows.answers)
        self._drafting_seconds.inc(1e-3 * drafting_ms)
        self._read.inc(rows.read + rows.fed - rows.answers)
        self._steps.inc(steps.steps)
        self._run_ahead.inc(steps.run_ahead)
        self._written.inc(steps.tokens)
        self._stale.inc(steps.stale)
        self._drafted.inc(steps.drafted)
        self._own_drafted.inc(steps.own_drafted)
        self._accepted.inc(steps.accepted)
        self._own_accepted.inc(steps.own_accepted)

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
        self._sent[kind].inc(count)

    def on_received(self, kind: FrameBytes, count: int) -> None:
        self._received[kind].inc(count)

    def on_log(self, level: str) -> None:
        if level in LEVELS:
            self._log_events.labels(level).inc()


GAUGES = {  # what is read of a server, with its label
    "moa_sessions": ("Sessions: with a running answer, with a stream, or waiting.", "state"),
    "moa_connections_total": ("Connections that made a call.", ""),
    "moa_open_calls": ("Conversations and answers whose call is open.", ""),
    "moa_queue_oldest_seconds": ("How long some session has waited for its turn.", ""),
    "moa_kv_held_bytes": ("Keys, values and memory rows that are held.", ""),
    "moa_kv_promised_bytes": ("What sessions hold or may come to hold.", ""),
    "moa_kv_running_bytes": ("The part of running answers, which must stay.", ""),
    "moa_kv_budget_bytes": ("What all may hold together.", ""),
    "moa_keys": ("API keys in force.", ""),
    "moa_draining": ("1 while the server is going away.", ""),
    "moa_hanging": ("1 while a forward is stuck for longer than 30 s.", ""),
    "moa_tls_certificate_expiry_timestamp_seconds": ("When the certificate ends.", ""),
    "moa_drafter_dropped": ("1 once a drafter has guessed worse than look-up: it is not asked any more.", "drafter"),
}
Readings = Mapping[str, Mapping[str, float]]  # of GAUGES, by the label's value


def sessions_by_state(registry: SessionRegistry) -> dict[str, int]:
    lives, detached = registry.live_sessions, registry.detached
    answering = sum(not live.is_idle for live in lives)
    return {"answering": answering, "idle": max(0, len(lives) - detached - answering), "detached": detached}


def oldest_wait(registry: SessionRegistry) -> float:
    """How many seconds some session has waited for its turn."""
    now = time.monotonic()
    return max((now - live.turn.queued_at for live in registry.live_sessions if live.turn.queued), default=0.0)


def read_host(host: Host, tls: TlsListener | None) -> Readings:
    """Reads a host; to be called on its event loop."""
    services, lifecycle, admission = host.services, host.lifecycle, host.admission
    pool, names = services.pool, {each.fingerprint: each.name for each in services.served.drafters}
    plain: dict[str, float] = {
        "moa_connections_total": admission.connections.made,
        "moa_open_calls": lifecycle.calls,
        "moa_queue_oldest_seconds": oldest_wait(services.registry),
        "moa_kv_held_bytes": pool.held,
        "moa_kv_promised_bytes": pool.promised,
        "moa_kv_running_bytes": pool.running,
        "moa_kv_budget_bytes": pool.budget,
        "moa_keys": len(admission.gate.book.entries),
        "moa_draining": lifecycle.draining,
        "moa_hanging": lifecycle.hangs,
    }
    if tls is not None:
        plain["moa_tls_certificate_expiry_timestamp_seconds"] = tls.certificate.expires_at.timestamp()
    dropped = {
        names[each.fingerprint]: bool(each.drafter.trial.is_dropped)
        for each in services.engine.stepper.sources
        if each.drafter is not None and each.fingerprint in names
    }
    labelled: Readings = {"moa_sessions": sessions_by_state(services.registry), "moa_drafter_dropped": dropped}
    return {**{name: {"": value} for name, value in plain.items()}, **labelled}


MOST_CONNECTIONS = 8  # a scraper, a few probes, a curious operator
SILENT_SECONDS = 5.0  # half of Prometheus' own patience
PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".svc", ".home.arpa")  # reserved, or of Kubernetes


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, *_: object) -> None:
        """Nobody's log needs a line for each scrape."""


class _Port(ThreadingWSGIServer):
    """prometheus_client's server. State: the open connections, oldest first; one too many ends the oldest."""

    request_queue_size = 16

    def __init__(self, host: str, port: int, page: WSGIApplication) -> None:
        self._held: dict[Any, None] = {}
        self._lock = threading.Lock()
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            super().__init__((found[0][4][0], port), _Handler)  # type: ignore[arg-type]  # an address, as text
        except OSError:
            raise cannot_listen(host, port, METRICS_OPTIONS) from None
        self.set_app(page)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without the look-up of the host's full name, which can take long
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._held) >= MOST_CONNECTIONS:
                oldest = next(iter(self._held))
                del self._held[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._held[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._held.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection has broken, or was ended."""


def names_this_machine(header: str, names: Collection[str]) -> bool:
    """Whether a header Host is an address, one of `names`, or a name that nobody can register.

    A site in a browser reaches a port by pointing a name of its own at it (DNS rebinding), which is then in Host.
    Prometheus and probes use addresses, and the names of a container network or a cluster.
    """
    try:
        name = urlsplit(f"//{header.strip()}").hostname or ""
    except ValueError:
        return False
    is_address = ip_of(name.partition("%")[0]) is not None
    return is_address or "." not in name or name.endswith(PRIVATE_ENDINGS) or name in names


BEAT_SECONDS = 0.1
LOOK_SECONDS = 0.5  # to wait for the event loop, before the look before is taken again
HEALTH = {"/startupz": "started", "/livez": "alive", "/readyz": "ready"}


class Observing(Collector):
    """The port of a process, and what it shows: prometheus_client's, which answers when the event loop does not."""

    def __init__(self, metrics: Metrics, host: str, port: int, hang_seconds: float) -> None:
        self.registry = metrics.registry
        self._lag = metrics.lag
        self._hang_seconds = hang_seconds
        self._began = time.monotonic()
        self._host: Host | None = None
        self._tls: TlsListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._newest: Readings = {}
        self._next: asyncio.TimerHandle | None = None
        self._last_beat = 0.0  # time.monotonic
        ready = Gauge("moa_ready", "1 while new conversations are taken.", registry=self.registry)
        ready.set_function(lambda: not self._troubles()["/readyz"])
        self.registry.register(self)
        self._metrics_page: WSGIApplication = make_wsgi_app(self.registry)
        self.names = {host.lower(), socket.gethostname().lower()}  # that a request may call this machine
        self._server = _Port(host, port, self._page)

    @property
    def port(self) -> int:
        return self._server.server_port

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
        self._newest, self._last_beat = read_host(host, tls), time.monotonic()
        self._host = host
        self._beat(self._loop)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._server.shutdown()
        self._server.server_close()

    def _troubles(self) -> dict[str, str]:
        """Why the server has not started, is not alive and takes no conversations, by page; empty: it has, is, does."""
        if self._host is None:
            loads = "the model is being loaded"
            return {"/startupz": loads, "/livez": "", "/readyz": loads}
        lifecycle, hangs = self._host.lifecycle, ""
        # Whoever asks has had a processor just now, in this process: the loop had it too, unless something is stuck.
        if (seconds := time.monotonic() - self._last_beat) > self._hang_seconds:
            hangs = f"the event loop has not turned for {seconds:.0f} s"
        elif lifecycle.stuck_seconds > self._hang_seconds:
            hangs = f"a forward has been stuck for {lifecycle.stuck_seconds:.0f} s"
        drains = "draining: running answers end, no new ones begin" if lifecycle.draining else ""
        return {"/startupz": "", "/livez": hangs, "/readyz": drains or hangs}

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        self._lag.observe(max(0.0, now - self._last_beat - BEAT_SECONDS))
        self._last_beat = now
        self._next = loop.call_later(BEAT_SECONDS, self._beat, loop)

    # ------------------------------------------------------------ on the port's threads

    def describe(self) -> list[Metric]:
        return []  # registering must not look at a server

    def collect(self) -> Iterator[Metric]:
        for name, values in self._look().items():
            text, label = GAUGES[name]
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=[label] if label else [])
            for each, value in values.items():
                family.add_metric([each] if label else [], float(value))
            yield family

    def _page(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, text = environ["PATH_INFO"], [("Content-Type", "text/plain; charset=utf-8")]
        if not names_this_machine(environ.get("HTTP_HOST", ""), self.names):
            start_response("403 Forbidden", text)
            return [b"The header Host is no name of this machine: use its address.\n"]
        if path not in HEALTH:
            return self._metrics_page(environ, start_response)
        trouble = self._troubles()[path]
        status = "503 Service Unavailable" if trouble else "200 OK"
        start_response(status, text)
        return [f"{trouble or HEALTH[path]}\n".encode()]

    def _look(self) -> Readings:
        """Looks at the server on its event loop; the look before, if that is busy or has ended."""
        host, loop, done = self._host, self._loop, threading.Event()
        if host is None or loop is None:
            return {}

        def look() -> None:
            self._newest = read_host(host, self._tls)
            done.set()

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(look)
            done.wait(LOOK_SECONDS)
        return self._newest
