"""What operators see of this process: the port for metrics and health, from before the model is loaded to the end.

State: the server that is observed, once there is one, and the newest look at it. Invariant: a busy event loop makes
what is shown older, never the port silent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from moa_server.observing.conditions import Condition, Signs, liveness, readiness, startup
from moa_server.observing.exposition import MoaCollector, ServerFacts, make_registry
from moa_server.observing.http_port import HttpPage, HttpPort
from moa_server.observing.metrics import Metrics
from moa_server.observing.pulse import Pulse
from moa_server.observing.readings import Readings, read_host
from moa_server.service.host import Host
from moa_server.service.service import own_version
from moa_server.tls.listener import TlsListener

LOOK_SECONDS = 0.5  # to wait for the event loop, before the look before is taken again
FRESH_SECONDS = 0.5  # a page of metrics is made at most so often, however many ask


class Observing:
    """The port of a process, and what it shows.

    Args:
        metrics: that the server counts.
        host, port: where to listen; port 0: any free one.
        hang_seconds: after which the event loop or a forward hangs.
        names: of this machine, by which it may be asked too.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, metrics: Metrics, host: str, port: int, hang_seconds: float, names: Sequence[str] = ()) -> None:
        self.metrics = metrics
        self._hang_seconds = hang_seconds
        self._began = time.monotonic()
        self._host: Host | None = None
        self._tls: TlsListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._facts: ServerFacts | None = None
        self._newest: Readings | None = None
        self._pulse = Pulse(metrics.lag.add)
        self.registry = make_registry(
            MoaCollector(metrics, self._look, lambda: self._facts, lambda: readiness(self.signs).holds)
        )
        self._lock = threading.Lock()
        self._text, self._made_at = b"", 0.0
        self._port = HttpPort(
            host,
            port,
            {
                "/metrics": self._metrics_page,
                "/livez": lambda: _page(liveness(self.signs)),
                "/readyz": lambda: _page(readiness(self.signs)),
                "/startupz": lambda: _page(startup(self.signs)),
            },
            names,
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port.port

    def follow(self, host: Host, tls: TlsListener | None) -> None:
        """Shows a server that serves; to be called on its event loop."""
        self._host, self._tls, self._loop = host, tls, asyncio.get_running_loop()
        self._facts = ServerFacts(_build(host), time.monotonic() - self._began)
        self._newest = read_host(host, tls)
        self._pulse.start()

    def stop(self) -> None:
        """Closes the port."""
        self._pulse.stop()
        self._port.stop()

    @property
    def signs(self) -> Signs:
        """What health follows from."""
        host = self._host
        return Signs(
            started=host is not None,
            draining=host is not None and host.lifecycle.draining,
            silent_seconds=self._pulse.silent_seconds,
            stuck_seconds=host.lifecycle.stuck_seconds if host is not None else 0.0,
            hang_seconds=self._hang_seconds,
        )

    # ------------------------------------------------------------ on the port's threads

    def _metrics_page(self) -> HttpPage:
        with self._lock:  # who comes meanwhile gets the same page
            if time.monotonic() - self._made_at > FRESH_SECONDS:
                self._text = generate_latest(self.registry)
                self._made_at = time.monotonic()
            return HttpPage(200, self._text, CONTENT_TYPE_LATEST)

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
    return HttpPage(200 if condition.holds else 503, f"{condition.reason}\n".encode())


def _build(host: Host) -> dict[str, str]:
    served = host.services.served
    drafters = ",".join(each.name for each in served.drafters)
    return {
        "version": own_version(),
        "model": served.identity.target_id,
        "level": served.execution.level,
        "drafters": drafters,
    }
