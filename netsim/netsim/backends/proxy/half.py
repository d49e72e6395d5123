"""One direction of a proxied connection: reads from one socket, writes to the other when the virtual sender says so.

Owns the bytes between the two. Invariant: what is written is what was read, in order, nothing left out.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable

from netsim.core.stream import StreamSender
from netsim.output.lateness import LatenessHistogram
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
