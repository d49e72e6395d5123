"""The stream backend: needs no privileges, sees bytes instead of packets, and so is approximate.

It listens, makes a connection for each client, whose two halves move bytes when their virtual senders say so, and
passes refusals on: while the upstream refuses, or the timeline says so, the socket does not listen (its port stays
ours), so that clients are refused by the kernel. Invariant: what is written is what was read, in order, nothing left
out.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import math
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from netsim.core.link import Direction, Release
from netsim.core.stream import StreamSender
from netsim.profiles import Scenario, load
from netsim.recorder import RunRecorder
from netsim.run.loop import Address, Loop, Timer, listen, parse_address, resolve
from netsim.run.session import Backend

READ_BYTES = 256 * 1024
# Linux lets a connection buffer some multiples of its window before a writer blocks; at least this much.
MIN_SEND_BUFFER = 64 * 1024
MAX_WRITE_BUFFER = 1024 * 1024  # that may wait here for a receiver that does not read


class Half:
    """One direction of a connection: moves bytes from `source` to `sink`."""

    def __init__(
        self, connection: ProxiedConnection, direction: Direction, source: socket.socket, sink: socket.socket,
        sender: StreamSender,
    ) -> None:  # fmt: skip
        self.sender = sender
        self.done = False
        self._connection, self._direction = connection, direction
        self._loop, self._recorder = connection.backend.loop, connection.backend.recorder
        self._source = source
        self._sink = sink
        self._buffer = bytearray()  # read and not yet written
        self._released = 0  # of those, how many have arrived
        self._ended = False  # the source has no more
        self._end_released = False
        self._blocked = False  # the sink takes no more for now
        self._closed = False
        self._timer: Timer = self._loop.call_at(math.inf, self.advance)
        self._reading = False
        self._watch()

    def _watch(self) -> None:
        """Reads while the virtual send buffer has room, and sets the timer for what comes next."""
        limit = max(MIN_SEND_BUFFER, 2.0 * self.sender.window.bytes)
        reading = not self._ended and self.sender.unsent < limit and self._released < MAX_WRITE_BUFFER
        if reading != self._reading:
            self._reading = reading
            self._loop.read(self._source.fileno(), self._read if reading else None)
        wake = self.sender.wake
        if wake != self._timer.t or self._timer.callback is None:
            self._timer.cancel()
            self._timer = self._loop.call_at(wake, self.advance)

    def _read(self) -> None:
        try:
            data = self._source.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._connection.on_error(self._direction, error)
            return
        t = self._loop.time()
        if data:
            self._buffer += data
            if self._direction is Direction.UP:
                self._recorder.question(self._connection.number, t, data)
            self.sender.offer(len(data), t)
        else:
            self._ended = True
            self.sender.offer_end(t)
        self.advance()

    def advance(self) -> None:
        if self._closed:
            return
        self._timer.callback = None
        t = self._loop.time()
        self.sender.advance(t)
        delivery = self.sender.deliver(t)
        if delivery.nbytes or delivery.end:
            self._released += delivery.nbytes
            self._end_released = self._end_released or delivery.end
            if not self._blocked:
                self._recorder.lateness.add(t - delivery.due)
            self._write()
        if not self._closed:
            self._watch()

    def _write(self) -> None:
        try:
            while self._released:
                with memoryview(self._buffer) as view, view[: self._released] as part:
                    sent = self._sink.send(part)
                del self._buffer[:sent]
                self._released -= sent
                if self._direction is Direction.DOWN:
                    self._recorder.answer(self._connection.number, self._loop.time())
            self._block(False)
            if self._end_released and not self.done:
                self._sink.shutdown(socket.SHUT_WR)
                self.done = True
                self._connection.on_half_done()
        except BlockingIOError:
            self._block(True)
        except OSError as error:
            self._connection.on_error(self._direction, error)

    def _block(self, blocked: bool) -> None:
        if blocked != self._blocked:
            self._blocked = blocked
            self._loop.write(self._sink.fileno(), self._write_on if blocked else None)

    def _write_on(self) -> None:
        self._write()
        if not self._closed:
            self._watch()

    def close(self) -> None:
        """Stops; the sockets stay open, as they belong to the connection."""
        self._closed = True
        self._timer.cancel()
        self._loop.read(self._source.fileno(), None)
        self._loop.write(self._sink.fileno(), None)


SYN_BYTES = 60  # 20 of IP and 40 of TCP with the usual options
FIRST_SYN_TIMEOUT_S = 1.0  # RFC 6298
ConnectionState = enum.Enum("ConnectionState", "CONNECTING OPEN ENDING CLOSED")


class ProxiedConnection:
    def __init__(self, backend: ProxyBackend, client: socket.socket, number: int) -> None:
        self.number = number
        self.state = ConnectionState.CONNECTING
        self.halves: dict[Direction, Half] = {}
        self.backend = backend
        self._loop = backend.loop
        self._client = client
        self._server = socket.socket(backend.upstream_family, socket.SOCK_STREAM)
        self._timers: list[Timer] = []
        for sock in (client, self._server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._syn(Direction.UP, 0, self._loop.time())

    def _syn(self, direction: Direction, attempt: int, first: float) -> None:
        """Sends the handshake's packet of one direction through the link, again and again if it is lost."""
        t = self._loop.time()
        verdict = self.backend.links[direction].admit(SYN_BYTES, t)
        if not isinstance(verdict, Release):
            if attempt == 6:  # tcp_syn_retries of Linux
                self.abort("handshake_timeout")
                return
            again = t + FIRST_SYN_TIMEOUT_S * 2.0**attempt
            self._later(again, lambda: self._syn(direction, attempt + 1, again))
        elif direction is Direction.UP:
            self._later(verdict.t, lambda: self._connect(first))
        else:
            self._later(verdict.t, lambda: self._establish(first))

    def _later(self, t: float, callback: Callable[[], None]) -> None:
        def unless_closed() -> None:
            if self.state is not ConnectionState.CLOSED:
                callback()

        self._timers.append(self._loop.call_at(t, unless_closed))

    def _connect(self, asked: float) -> None:
        code = self._server.connect_ex(tuple(self.backend.upstream))
        if code not in (0, errno.EINPROGRESS):
            self._refused(code)
            return
        self._loop.write(self._server.fileno(), lambda: self._connected(asked))

    def _connected(self, asked: float) -> None:
        self._loop.write(self._server.fileno(), None)
        code = self._server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._refused(code)
            return
        self._syn(Direction.DOWN, 0, asked)

    def _refused(self, code: int) -> None:
        """The server does not take the connection: the client's is reset, after the way back."""
        self.backend.on_upstream_refused(code)
        verdict = self.backend.links[Direction.DOWN].admit(SYN_BYTES, self._loop.time())
        due = verdict.t if isinstance(verdict, Release) else self._loop.time() + FIRST_SYN_TIMEOUT_S
        self._later(due, lambda: self.abort("upstream_refused"))

    def _establish(self, asked: float) -> None:
        t = self._loop.time()
        rtt_s = t - asked
        links, up, down = self.backend.links, Direction.UP, Direction.DOWN
        last_leg = links[up].acknowledgement_s(t)  # the handshake's third packet
        self.state = ConnectionState.OPEN
        for direction, other, source, sink, start in (
            (up, down, self._client, self._server, t),
            (down, up, self._server, self._client, t + last_leg),
        ):
            sender = StreamSender(links[direction], links[other], start, rtt_s)
            self.halves[direction] = Half(self, direction, source, sink, sender)

    def on_error(self, direction: Direction, error: OSError) -> None:
        """A side reset its connection: the other learns it after the link's delay."""
        for half in self.halves.values():
            half.close()
        t = self._loop.time()
        delay_s = self.backend.links[direction].acknowledgement_s(t)
        self._later(t + delay_s, lambda: self.abort(errno.errorcode.get(error.errno or 0, "error").lower()))

    def on_half_done(self) -> None:
        if all(half.done for half in self.halves.values()):
            self._close("closed")

    def end(self) -> None:
        """Both sides see an orderly end at once, as from a middle box; what they still send is thrown away."""
        if self.state is not ConnectionState.OPEN:
            self.abort("fin")
            return
        self.state = ConnectionState.ENDING
        for half in self.halves.values():
            half.close()
        waiting = {self._client, self._server}

        def discard(sock: socket.socket) -> None:
            try:
                data = sock.recv(64 * 1024)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.read(sock.fileno(), None)
                waiting.discard(sock)
                if not waiting:
                    self._close("fin")

        for sock in (self._client, self._server):
            try:
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                waiting.discard(sock)  # that side has gone already
                continue
            self._loop.read(sock.fileno(), lambda sock=sock: discard(sock))  # type: ignore[misc]
        self._later(self._loop.time() + 2.0, lambda: self._close("fin"))  # for a side that does not close

    def abort(self, why: str) -> None:
        for sock in (self._client, self._server):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(why)

    def _close(self, why: str) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        self.state = ConnectionState.CLOSED
        for half in self.halves.values():
            half.close()
        for timer in self._timers:
            timer.cancel()
        for sock in (self._client, self._server):
            self._loop.read(sock.fileno(), None)
            self._loop.write(sock.fileno(), None)
            sock.close()
        self.backend.on_closed(self, why)


MAX_CONNECTIONS = 480  # two sockets each, and select(2) knows no more than 1,024
RETRY_S = 0.05  # between looks at a server that refuses


class ProxyBackend(Backend):
    """A link before one upstream address."""

    name = "proxy"

    def __init__(
        self, loop: Loop, scenario: Scenario, recorder: RunRecorder, at: Address | socket.socket, upstream: Address
    ) -> None:
        super().__init__(loop, scenario, recorder)
        self.upstream_family, self.upstream = resolve(upstream, "upstream")
        self._connections: set[ProxiedConnection] = set()
        self._accepted = 0
        self._socket = at if isinstance(at, socket.socket) else listen(at)
        # What a client may have under way to the proxy before the link is asked.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
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
        return str(self.address)

    def facts(self) -> dict[str, Any]:
        return {"listen": str(self.address), "upstream": str(self.upstream), "congestion_control": "modelled cubic"}

    def connections(self) -> int:
        return len(self._connections)

    def on_closed(self, connection: ProxiedConnection, why: str) -> None:
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
        for connection in self._connections:
            half = connection.halves.get(direction)
            if half is not None:
                half.sender.cut(t)
                half.advance()

    def reset(self) -> int:
        return self._end(lambda connection: connection.abort("reset"))

    def fin(self) -> int:
        return self._end(ProxiedConnection.end)

    def _end(self, how: Callable[[ProxiedConnection], None]) -> int:
        ended = list(self._connections)
        for connection in ended:
            how(connection)
        return len(ended)

    def refuse(self, refusing: bool) -> None:
        if refusing:
            self._close_for("timeline")
        else:
            self._open_for("timeline")

    def close(self) -> None:
        self.reset()
        if self._socket.fileno() >= 0:
            self.loop.read(self._socket.fileno(), None)
            self._socket.close()


def main(fd: int, upstream: str) -> None:
    """Forwards from the listening socket `fd` until standard input ends; the tun backend starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command; the emulator ends us
    loop = Loop()
    listener = socket.socket(fileno=fd)
    listener.setblocking(False)
    scenario = Scenario(load("perfect"))
    backend = ProxyBackend(loop, scenario, RunRecorder(None), listener, parse_address(upstream, "upstream"))
    loop.read(sys.stdin.fileno(), lambda: loop.stop() if not os.read(sys.stdin.fileno(), 1) else None)
    signal.signal(signal.SIGTERM, lambda number, frame: loop.stop())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop.run()
    backend.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
