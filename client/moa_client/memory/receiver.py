"""Memory from the server: checked, counted, and handed to the drafter.

State: which positions have their row, on each plane. Invariant: rows of positions that are not committed are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Memory, Plane
from moa_shared.protocol.prefix_hash import PrefixHashes


class MemoryReader(Protocol):
    """A drafter that reads memory."""

    # Takes in `count` coded rows of `width` numbers, from position `start` on. state: of the plane of reused states.
    def remember(self, start: int, payload: bytes, codec: Codec, count: int, width: int, *, state: bool) -> None: ...


class RowsHeld:
    """Positions of one plane whose rows have arrived."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self.first_missing = 0
        self.stop = 0  # after the newest one

    def add(self, start: int, stop: int) -> None:
        self._held.update(range(start, stop))
        self.stop = max(self.stop, stop)
        while self.first_missing in self._held:
            self.first_missing += 1

    def crop(self, length: int) -> None:
        """Forgets rows from position `length` on."""
        if length < self.stop:
            self._held = {position for position in self._held if position < length}
            self.stop = max(self._held, default=-1) + 1
            self.first_missing = min(self.first_missing, length)


class MemoryReceiver:
    """Receives the memory of one drafter.

    Args:
        widths: numbers of a row of each requested plane.

    The first plane is the one that drafts need most: `newest` is about it.
    """

    def __init__(self, reader: MemoryReader, widths: Mapping[Plane, int], codecs: Sequence[Codec]) -> None:
        self._reader = reader
        self._widths = widths
        self._codecs = tuple(codecs)
        self._rows = {plane: RowsHeld() for plane in widths}

    @property
    def newest(self) -> int:
        """Rows of the first plane have arrived for positions up to here."""
        return next(iter(self._rows.values())).stop

    @property
    def gap(self) -> int:
        """The first position that lacks a row of the first plane."""
        return next(iter(self._rows.values())).first_missing

    def crop(self, length: int) -> None:
        """The drafter has forgotten what it knew from position `length` on."""
        for rows in self._rows.values():
            rows.crop(length)

    def on_frame(self, memory: Memory, hashes: PrefixHashes) -> None:
        """Takes in a frame; one for other tokens (in flight when they changed) is ignored."""
        width = self._widths.get(memory.plane)
        if not width:
            raise ProtocolError("no memory that was not asked for", f"memory of plane {memory.plane}")
        if memory.codec not in self._codecs:
            names = " or ".join(codec.name.lower() for codec in self._codecs)
            raise ProtocolError(f"memory in {names}", memory.codec.name.lower())
        stop = memory.start + memory.count
        if stop > len(hashes):
            raise ProtocolError(f"memory of positions before {len(hashes)}", f"{memory.start} to {stop - 1}")
        if memory.prefix_hash != hashes.short_at(stop):
            return
        self._reader.remember(
            memory.start, memory.payload, memory.codec, memory.count, width, state=memory.plane is Plane.REUSED_STATE
        )
        self._rows[memory.plane].add(memory.start, stop)
