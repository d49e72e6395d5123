"""Rows of one plane of one session, kept so that a client that resumes can be sent them again.

State: a growing buffer of rows by position and which of them are held, owned by the inference thread. Rows come in any
order: the newest of a prompt first. Invariant: each held row belongs to the token that the KV cache holds there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from moa_shared.bfloat16 import round_to_bfloat16, widen_bfloat16
from moa_shared.errors import InternalError

Rows = npt.NDArray[np.float32]

INITIAL_ROWS = 256  # a first prompt; doubles from there


def most_nbytes(width: int, rows: int) -> int:
    """The most bytes that a store takes while it grows to `rows` rows."""
    return 2 * width * max(INITIAL_ROWS, 2 * rows)


class RowStore:
    """Rows of `width` numbers, in bf16: the most exact codec of the wire.

    Args:
        width: numbers of a row.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._buffer = np.empty((0, width), dtype=np.uint16)  # bit patterns of bf16
        self._held = bytearray()  # 1 where the row is held

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self._buffer.nbytes

    def release(self) -> None:
        """Forgets all rows and gives their memory back."""
        self._buffer, self._held = np.empty((0, self.width), dtype=np.uint16), bytearray()

    def crop(self, length: int) -> None:
        """Forgets the rows from position `length` on."""
        del self._held[length:]

    def write(self, start: int, rows: Rows) -> None:
        """Puts `rows`, [count, width] float32, at `start`."""
        stop = start + rows.shape[0]
        if stop > self._buffer.shape[0]:
            grown = np.empty((max(stop, 2 * self._buffer.shape[0], INITIAL_ROWS), self.width), dtype=np.uint16)
            grown[: self._buffer.shape[0]] = self._buffer
            self._buffer = grown
        self._buffer[start:stop] = round_to_bfloat16(rows)
        self._held.extend(bytes(max(0, stop - len(self._held))))
        self._held[start:stop] = b"\x01" * rows.shape[0]

    def first_missing(self, start: int, stop: int) -> int:
        """The first position of `start` to `stop` whose row is not held; `stop` where all are."""
        missing = self._held.find(0, start, stop)
        return missing if missing >= 0 else min(stop, max(start, len(self._held)))

    def read(self, start: int, stop: int) -> Rows:
        """[stop - start, width] float32, as rounded to bf16.

        Raises:
            InternalError: rows that are not held.
        """
        if not 0 <= start <= stop or self.first_missing(start, stop) < stop:
            raise InternalError(f"Rows {start}..{stop} were requested from a store that does not hold them all.")
        return widen_bfloat16(self._buffer[start:stop])
