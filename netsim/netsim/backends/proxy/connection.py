"""One direction of a proxied connection: reads from one socket, writes to the other when the virtual sender says so.

Owns the bytes between the two. Invariant: what is written is what was read, in order, nothing left out.
"""

from __future__ import annotations

import enum
import errno
import math
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from netsim.core.link import Direction, LinkModel, Release
from netsim.core.stream import StreamSender
from netsim.output.recorder import BOTH_WAYS, LatenessHistogram, RunRecorder
from netsim.run.address import Address
from netsim.run.loop import Loop, Timer

READ_BYTES = 256 * 1024
# Linux lets a connection buffer some multiples of its window before a writer blocks; at least this much.
MIN_SEND_BUFFER = 64 * 1024
MAX_WRITE_BUFFER = 1024 * 1024  # that may wait here for a receiver that does not read


class Half:
    """One direction of a connection: moves bytes from `source` to `sink`."""

    def __init__(
        self,
        loop: Loop,
        source: socket.socket,
        sink: socket.socket,
        sender: StreamSender,
        lateness: LatenessHistogram,
        on_read: Callable[[bytes], None],
        on_written: Callable[[], None],
        on_error: Callable[[OSError], None],
        on_done: Callable[[], None],
    ) -> None:
        self.sender = sender
        self.done = False
        self._loop = loop
        self._source = source
        self._sink = sink
        self._lateness = lateness
        self._on_read, self._on_written, self._on_error, self._on_done = on_read, on_written, on_error, on_done
        self._buffer = bytearray()  # read and not yet written
        self._released = 0  # of those, how many have arrived
        self._ended = False  # the source has no more
        self._end_released = False
        self._blocked = False  # the sink takes no more for now
        self._closed = False
        self._timer: Timer = loop.call_at(math.inf, self.advance)
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
            self._on_error(error)
            return
        t = self._loop.time()
        if data:
            self._buffer += data
            self._on_read(data)
            self.sender.offer(len(data), t)
        else:
            self._ended = True
            self.sender.offer_end(t)
        self.advance()

    def advance(self) -> None:
        """Does what is due by now."""
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
                self._lateness.add(t - delivery.due)
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
                self._on_written()
            self._block(False)
            if self._end_released and not self.done:
                self._sink.shutdown(socket.SHUT_WR)
                self.done = True
                self._on_done()
        except BlockingIOError:
            self._block(True)
        except OSError as error:
            self._on_error(error)

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
SYN_RETRIES = 6  # tcp_syn_retries of Linux
FIRST_SYN_TIMEOUT_S = 1.0  # RFC 6298
LINGER_S = 2.0  # how long an end by a middle box waits for both sides to close


class ConnectionState(enum.Enum):
    """The state of a connection."""

    CONNECTING = "connecting"
    OPEN = "open"
    ENDING = "ending"
    CLOSED = "closed"


class Proxy(Protocol):
    """What a connection passes through; learns how it ends."""

    loop: Loop
    recorder: RunRecorder
    links: dict[Direction, LinkModel]
    upstream: Address
    upstream_family: socket.AddressFamily

    def on_closed(self, connection: ProxiedConnection, why: str) -> None:
        """A connection has ended."""

    def on_upstream_refused(self, code: int) -> None:
        """The server refuses, with this errno."""


class ProxiedConnection:
    """One proxied connection; owns both sockets."""

    def __init__(self, backend: Proxy, client: socket.socket, number: int) -> None:
        self.number = number
        self.state = ConnectionState.CONNECTING
        self.halves: dict[Direction, Half] = {}
        self._backend = backend
        self._loop = backend.loop
        self._client = client
        self._server = socket.socket(backend.upstream_family, socket.SOCK_STREAM)
        self._asked_at: float | None = None
        self._has_requests: bool | None = None  # unknown until its first bytes
        self._timers: list[Timer] = []
        for sock in (client, self._server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._syn(Direction.UP, 0, self._loop.time())

    def _syn(self, direction: Direction, attempt: int, first: float) -> None:
        """Sends the handshake's packet of one direction through the link, again and again if it is lost."""
        t = self._loop.time()
        verdict = self._backend.links[direction].admit(SYN_BYTES, t)
        if not isinstance(verdict, Release):
            if attempt == SYN_RETRIES:
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
        code = self._server.connect_ex(tuple(self._backend.upstream))
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
        self._backend.on_upstream_refused(code)
        verdict = self._backend.links[Direction.DOWN].admit(SYN_BYTES, self._loop.time())
        due = verdict.t if isinstance(verdict, Release) else self._loop.time() + FIRST_SYN_TIMEOUT_S
        self._later(due, lambda: self.abort("upstream_refused"))

    def _establish(self, asked: float) -> None:
        t = self._loop.time()
        rtt_s = t - asked
        links, up, down = self._backend.links, Direction.UP, Direction.DOWN
        last_leg = links[up].acknowledgement_s(t)  # the handshake's third packet
        self.state = ConnectionState.OPEN
        for direction, other, source, sink, start in (
            (up, down, self._client, self._server, t),
            (down, up, self._server, self._client, t + last_leg),
        ):
            self.halves[direction] = Half(
                self._loop,
                source,
                sink,
                StreamSender(links[direction], links[other], start, rtt_s),
                self._backend.recorder.lateness,
                on_read=self._on_question if direction is up else _nothing,
                on_written=self._on_answer if direction is down else _nothing,
                on_error=lambda error, direction=direction: self._on_error(direction, error),  # type: ignore[misc]
                on_done=self._on_half_done,
            )

    def _on_question(self, data: bytes) -> None:
        if self._has_requests is None:
            self._has_requests = not data.startswith(BOTH_WAYS)
        if self._has_requests and self._asked_at is None:
            self._asked_at = self._loop.time()

    def _on_answer(self) -> None:
        if self._asked_at is not None:
            t = self._loop.time()
            latency_ms = round((t - self._asked_at) * 1e3, 3)
            self._backend.recorder.event(self._asked_at, "request", connection=self.number, latency_ms=latency_ms)
            self._asked_at = None

    def _on_error(self, direction: Direction, error: OSError) -> None:
        """A side reset its connection: the other learns it after the link's delay."""
        for half in self.halves.values():
            half.close()
        t = self._loop.time()
        delay_s = self._backend.links[direction].acknowledgement_s(t)
        self._later(t + delay_s, lambda: self.abort(errno.errorcode.get(error.errno or 0, "error").lower()))

    def _on_half_done(self) -> None:
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
        self._later(self._loop.time() + LINGER_S, lambda: self._close("fin"))

    def abort(self, why: str) -> None:
        """Both sides see a reset."""
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
        self._backend.on_closed(self, why)


def _nothing(data: bytes = b"") -> None:
    """Nothing to note."""
