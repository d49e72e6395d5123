"""The HTTP port for metrics and health: prometheus_client's server, which answers when the event loop does not.

State: the open connections, oldest first. Invariant: at most MOST_CONNECTIONS of them; one more takes the oldest one's
place. Only GET and HEAD of known paths are answered, and only to who names this machine.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from prometheus_client.exposition import ThreadingWSGIServer

from moa_server.addresses import METRICS_OPTIONS, cannot_listen

log = structlog.get_logger()

MOST_CONNECTIONS = 8  # a scraper, a few probes, a curious operator
SILENT_SECONDS = 5.0  # half of Prometheus' own patience
PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".svc", ".home.arpa")  # reserved, or of Kubernetes
TEXT = "text/plain; charset=utf-8"
HttpPage = tuple[int, bytes, str]  # status, body and type


class HttpPort(ThreadingWSGIServer):
    """Listens, and answers GET with pages.

    `pages`: makes a page for each path; called on any thread. `names`: more of this machine's, besides its own for
    itself; a request that names another one is refused.
    """

    request_queue_size = 16

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Callable[[], HttpPage]], names: Sequence[str] = ()
    ) -> None:
        self._pages = pages
        self._names = {name.lower() for name in (host, socket.gethostname(), *names)}
        self._held: dict[Any, None] = {}
        self._lock = threading.Lock()
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            super().__init__((found[0][4][0], port), _Handler)  # type: ignore[arg-type]  # an address, as text
        except OSError:
            raise cannot_listen(host, port, METRICS_OPTIONS) from None
        self.set_app(self._answer)
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without the look-up of the host's full name, which can take long
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._held:
                _end(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._held) >= MOST_CONNECTIONS:
                oldest = next(iter(self._held))
                del self._held[oldest]
                _end(oldest)  # its thread closes it
            self._held[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._held.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection has broken, or was ended."""

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, body, kind = self._page(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_HOST"))
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _page(self, method: str, path: str, named: str | None) -> HttpPage:
        if named is not None and not self._is_ours(_host_in(named)):
            return 403, b"The header Host is no name of this machine: use its address.\n", TEXT
        if method not in ("GET", "HEAD"):
            return 405, b"Only GET and HEAD are answered.\n", TEXT
        if path not in self._pages:
            return 404, f"Pages: {', '.join(self._pages)}\n".encode(), TEXT
        try:
            return self._pages[path]()
        except Exception:
            log.exception("a page for operators failed", path=path)
            return 500, b"The page failed; the server's log says why.\n", TEXT

    def _is_ours(self, name: str) -> bool:
        """Whether a host is an address, or has a name that nobody can register.

        A site in a browser reaches this port by pointing a name of its own here (DNS rebinding), which is then in Host.
        Prometheus and probes use addresses, and the names of a container network or a cluster.
        """
        with contextlib.suppress(ValueError):
            ip_address(name.partition("%")[0])
            return True
        return "." not in name or name.endswith(PRIVATE_ENDINGS) or name in self._names


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, *_: object) -> None:
        """Nobody's log needs a line for each scrape."""


def _host_in(header: str) -> str:
    try:
        return urlsplit(f"//{header.strip()}").hostname or ""
    except ValueError:
        return "."  # no name at all


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
