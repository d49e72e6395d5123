"""What of a session's memory to send next, and how much may be in flight: two planes, one credit.

Pure. State: an outbox for each plane, the codec, the bytes that the client has not yet taken in. Invariant: no chunk is
given while the bytes in flight reach the credit; the memory plane goes before the reused state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from moa_shared.codec import Codec, row_bytes

from moa_server.outbox import MemoryOutbox

CHUNK_BYTES = 32 * 1024  # of one Memory frame: 13 ms of a 20 Mbit/s link, which is how long a verdict may wait for it
CHUNK_ROWS = 16  # rows encoded at once: 12 ms on one core for the default target, which is how long a forward waits


class Plane(IntEnum):
    """The numbers are those of the wire (moa.v1.Plane)."""

    MEMORY = 0
    REUSED_STATE = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `start` to `start + count` of a plane, to be sent in `codec`."""

    plane: Plane
    start: int
    count: int
    codec: Codec
    nbytes: int


class MemoryFeed:
    """The memory that one stream still owes its client.

    Args:
        widths: numbers of a row of each plane that the client wants.
        codec: that rows are sent in.
        credit_bytes: payload that may be in flight.
        start: first position whose rows the client lacks.
    """

    def __init__(self, widths: Mapping[Plane, int], codec: Codec, credit_bytes: int, start: int = 0) -> None:
        self.codec = codec
        self.in_flight_bytes = 0
        self._credit_bytes = credit_bytes
        self._widths = dict(sorted(widths.items()))
        self._outboxes = {plane: MemoryOutbox(start) for plane in self._widths}

    @property
    def planes(self) -> tuple[Plane, ...]:
        return tuple(self._widths)

    def rows_ready(self, stop: int) -> None:
        """Rows of all positions before `stop` can be sent."""
        for outbox in self._outboxes.values():
            outbox.rows_ready(stop)

    def crop(self, length: int) -> None:
        """Rows from position `length` on are void; what comes there again is new."""
        for outbox in self._outboxes.values():
            outbox.crop(length)

    def on_credit(self, count: int) -> None:
        """The client has taken in `count` bytes."""
        self.in_flight_bytes = max(0, self.in_flight_bytes - count)

    def most_rows(self, plane: Plane) -> int:
        """Rows of one frame."""
        fitting = min(CHUNK_BYTES, self._credit_bytes) // row_bytes(self.codec, self._widths[plane])
        return max(1, min(fitting, CHUNK_ROWS))

    def unsent_before(self, plane: Plane, stop: int) -> int:
        """Where the run of rows that ends at `stop` and is not sent begins; `stop` if there is none."""
        waiting = self._outboxes[plane].waiting
        return waiting[-1][0] if waiting and waiting[-1][1] == stop else stop

    def take(self) -> Chunk | None:
        """The next chunk, which counts as in flight from now on; None if nothing may be sent."""
        for plane, outbox in self._outboxes.items():
            size = row_bytes(self.codec, self._widths[plane])
            room = (self._credit_bytes - self.in_flight_bytes) // size
            if self.in_flight_bytes == 0:
                room = max(room, 1)  # a credit below one row must not stop memory for good
            taken = outbox.take(min(self.most_rows(plane), room))
            if taken is not None:
                start, count = taken
                self.in_flight_bytes += count * size
                return Chunk(plane, start, count, self.codec, count * size)
            if outbox.waiting:
                return None  # the credit is used up
        return None
