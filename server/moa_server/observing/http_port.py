"""A small HTTP port for metrics and health, on threads of its own, so that it answers when the event loop does not.

State: the open connections, oldest first. Invariants: at most MOST_CONNECTIONS of them, each for CONNECTION_SECONDS;
one more takes the oldest one's place; only GET and HEAD of known paths, with a short head, are answered.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog
from moa_shared.errors import ConfigError

log = structlog.get_logger()

MOST_CONNECTIONS = 8  # a scraper, a few probes, a curious operator
CONNECTION_SECONDS = 5.0  # from its begin to its end; half of Prometheus' own patience
MOST_HEAD_BYTES = 8192
TEXT = "text/plain; charset=utf-8"
PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".svc", ".home.arpa")  # reserved, or of Kubernetes
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class HttpPage:
    """What a path gives."""

    status: int
    body: bytes
    content_type: str = TEXT


class HttpPort:
    """Listens, and answers GET with pages.

    Args:
        pages: makes a page for each path; called on any thread.
        names: more of this machine's, besides its own for itself; a request that names another one is refused.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Callable[[], HttpPage]], names: Sequence[str] = ()
    ) -> None:
        self._pages = pages
        self._names = {name.lower() for name in (host, socket.gethostname(), *names)}
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the port and its connections."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._socket.close()
        with self._lock:
            for connection in self._open:
                _end(connection)
        self._thread.join(1.0)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._stopping:
                    return
                time.sleep(0.1)  # out of file descriptors, for example
                continue
            with self._lock:
                if len(self._open) >= MOST_CONNECTIONS:
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    _end(oldest)  # its thread closes it
                self._open[connection] = None
            threading.Thread(target=self._serve, args=(connection,), name="metrics call", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                self._answer(connection, time.monotonic() + CONNECTION_SECONDS)
        finally:
            with self._lock:
                self._open.pop(connection, None)

    def _answer(self, connection: socket.socket, deadline: float) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            received = connection.recv(4096)
            if not received:
                return
            head += received
            if len(head) > MOST_HEAD_BYTES:
                break
        method, page = self._page(head)
        phrase = _PHRASES[page.status]
        lines = (
            f"HTTP/1.1 {page.status} {phrase}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(page.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else page.body)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)

    def _page(self, head: bytes) -> tuple[str, HttpPage]:
        if len(head) > MOST_HEAD_BYTES:
            return "", HttpPage(431, b"The head is too long.\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", HttpPage(400, b"This is no HTTP/1 request.\n")
        if (name := _named_host(head)) is not None and not _is_private(name) and name not in self._names:
            return words[0], HttpPage(403, b"The header Host is no name of this machine: use its address.\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return method, HttpPage(405, b"Only GET and HEAD are answered.\n")
        make = self._pages.get(path)
        if make is None:
            return method, HttpPage(404, f"Pages: {', '.join(self._pages)}\n".encode())
        try:
            return method, make()
        except Exception:
            log.exception("a page for operators failed", path=path)
            return method, HttpPage(500, b"The page failed; the server's log says why.\n")


def _named_host(head: bytes) -> str | None:
    """The header Host of a request without its port; None: it has none."""
    found = re.search(rb"\r\nhost:[ \t]*([^\r]*)", head, re.IGNORECASE)
    if found is None:
        return None
    try:
        return urlsplit(f"//{found[1].decode('latin-1').strip()}").hostname or ""
    except ValueError:
        return "."  # no name at all


def _is_private(name: str) -> bool:
    """Whether a host is an address, or has a name that nobody can register.

    A site in a browser reaches this port by pointing a name of its own here (DNS rebinding), which is then in Host.
    Prometheus and probes use addresses, and the names of a container network or a cluster.
    """
    with contextlib.suppress(ValueError):
        ip_address(name.partition("%")[0])
        return True
    return "." not in name or name.endswith(PRIVATE_ENDINGS)


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        return socket.create_server((where[0], port), family=family, backlog=16)
    except OSError:
        where_text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise ConfigError(
            f"Cannot listen on {where_text} for metrics: it is in use, or no address of this machine.",
            hint="Choose another --metrics-host or --metrics-port.",
        ) from None


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
