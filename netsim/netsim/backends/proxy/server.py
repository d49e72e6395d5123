"""The proxy backend: listens, makes a connection for each client, and passes refusals on.

Owns the listening socket and the connections. While the upstream refuses, or the timeline says so, the socket does not
listen (its port stays ours), so that clients are refused by the kernel as the server itself would have refused them.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from netsim.backends.proxy.connection import ProxiedConnection
from netsim.core.link import Direction, LinkModel
from netsim.output.recorder import RunRecorder
from netsim.profile.scenario import Scenario
from netsim.run.address import Address, listen, resolve
from netsim.run.loop import Loop

MAX_CONNECTIONS = 480  # two sockets each, and select(2) knows no more than 1,024
RETRY_S = 0.05  # between looks at a server that refuses
RECEIVE_BUFFER = 256 * 1024  # what a client may have under way to the proxy before the link is asked


class ProxyBackend:
    """A link before one upstream address."""

    name = "proxy"

    def __init__(
        self, loop: Loop, scenario: Scenario, recorder: RunRecorder, at: Address | socket.socket, upstream: Address
    ) -> None:
        self.loop = loop
        self.recorder = recorder
        self.links: dict[Direction, LinkModel] = scenario.models(recorder.packet)
        self.upstream_family, self.upstream = resolve(upstream, "upstream")
        self._connections: set[ProxiedConnection] = set()
        self._accepted = 0
        self._socket = at if isinstance(at, socket.socket) else listen(at)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self.address = Address(*self._socket.getsockname()[:2])
        self._closed_for: set[str] = set()
        loop.read(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._socket.accept()
            self._accepted += 1
            t = self.loop.time()
            if len(self._connections) >= MAX_CONNECTIONS:
                client.close()
                self.recorder.event(t, "too_many_connections", limit=MAX_CONNECTIONS)
                return
            self.recorder.event(t, "open", connection=self._accepted)
            self._connections.add(ProxiedConnection(self, client, self._accepted))

    def endpoint(self) -> str:
        """Where clients connect to."""
        return str(self.address)

    def facts(self) -> dict[str, Any]:
        """What the summary says."""
        return {"listen": str(self.address), "upstream": str(self.upstream), "congestion_control": "modelled cubic"}

    def connections(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def on_closed(self, connection: ProxiedConnection, why: str) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self.recorder.event(self.loop.time(), "close", connection=connection.number, why=why)

    def on_upstream_refused(self, code: int) -> None:
        """The server refuses: so does the proxy, until the server accepts again."""
        self.recorder.event(self.loop.time(), "upstream_refused", error=errno.errorcode.get(code, str(code)))
        if "upstream" not in self._closed_for:
            self._close_for("upstream")
            self.loop.call_at(self.loop.time() + RETRY_S, self._try_upstream)

    def _try_upstream(self) -> None:
        probe = socket.socket(self.upstream_family, socket.SOCK_STREAM)
        probe.setblocking(False)
        code = probe.connect_ex(tuple(self.upstream))
        if code == errno.EINPROGRESS:
            self.loop.write(probe.fileno(), lambda: self._probed(probe))
        else:
            self._probed(probe, code)

    def _probed(self, probe: socket.socket, code: int | None = None) -> None:
        self.loop.write(probe.fileno(), None)
        if code is None:
            code = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        probe.close()
        if code == 0:
            self._open_for("upstream")
        else:
            self.loop.call_at(self.loop.time() + RETRY_S, self._try_upstream)

    def _close_for(self, reason: str) -> None:
        if not self._closed_for:
            self.loop.read(self._socket.fileno(), None)
            self._socket.shutdown(socket.SHUT_RDWR)  # stops listening, keeps the port
        self._closed_for.add(reason)

    def _open_for(self, reason: str) -> None:
        if reason in self._closed_for:
            self._closed_for.discard(reason)
            if not self._closed_for:
                self._socket.listen(128)
                self.loop.read(self._socket.fileno(), self._accept)

    def on_cut(self, direction: Direction, t: float) -> None:
        """What is under way in that direction is lost, and will be sent again."""
        for connection in self._connections:
            half = connection.halves.get(direction)
            if half is not None:
                half.sender.cut(t)
                half.advance()

    def reset(self) -> int:
        """Ends every connection with a reset."""
        ended = list(self._connections)
        for connection in ended:
            connection.abort("reset")
        return len(ended)

    def fin(self) -> int:
        """Ends every connection in the orderly way."""
        ended = list(self._connections)
        for connection in ended:
            connection.end()
        return len(ended)

    def refuse(self, refusing: bool) -> None:
        """Refuses new connections, or accepts them again."""
        if refusing:
            self._close_for("timeline")
        else:
            self._open_for("timeline")

    def close(self) -> None:
        """Ends what is open."""
        self.reset()
        if self._socket.fileno() >= 0:
            self.loop.read(self._socket.fileno(), None)
            self._socket.close()
