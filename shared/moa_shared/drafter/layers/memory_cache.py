"""Keys and values of memory rows, as they have come: in any order, since keys carry their own position.

State: the cache, and the position of each of its rows. Invariant: no position is held twice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache

from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.errors import ProtocolError

Write = Callable[[Cache, Rows, npt.NDArray[np.int32]], None]
_BATCH = 512  # rows at once: bounds what is held next to the cache


class MemoryCache:
    """What a drafter holds of the rows that its server has sent.

    Args:
        cache: empty.
        width: numbers of a row.
        write: appends rows, whose positions are given, to the cache.
    """

    def __init__(self, cache: Cache, width: int, write: Write) -> None:
        self.cache = cache
        self._width = width
        self._write = write
        self._positions: list[int] = []  # by row
        self._held: set[int] = set()  # the same

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, start: int, rows: Rows) -> None:
        """Adds rows, [rows, width] float32, of positions from `start`; those already held are skipped.

        Raises:
            ProtocolError: rows of another width.
        """
        if rows.shape[-1] != self._width:
            raise ProtocolError(f"memory rows of {self._width} numbers", f"{rows.shape[-1]}")
        new = [index for index in range(len(rows)) if start + index not in self._held]
        for first in range(0, len(new), _BATCH):
            batch = new[first : first + _BATCH]
            self._write(self.cache, rows[batch], np.array(batch, np.int32) + np.int32(start))
        positions = [start + index for index in new]
        self._positions += positions
        self._held.update(positions)

    def rows_from(self, position: int) -> list[int]:
        """The cache's rows of this position and later ones, ascending."""
        if max(self._held, default=-1) < position:
            return []
        return [row for row, each in enumerate(self._positions) if each >= position]

    def crop(self, length: int) -> None:
        """Forgets the rows of positions from `length` on."""
        if max(self._held, default=-1) < length:
            return
        kept = [row for row, position in enumerate(self._positions) if position < length]
        self.cache.keep_behind(0, kept)
        self._positions = [self._positions[row] for row in kept]
        self._held = set(self._positions)
