"""Rows of one plane of one session, kept so that a client that resumes can be sent them again.

State: a growing buffer of rows by position, owned by the inference thread. Invariant: rows 0..length are those of the
tokens that the KV cache holds (or held when they were written).
"""

from __future__ import annotations

import torch
from moa_shared.errors import InternalError

INITIAL_ROWS = 256  # a first prompt; doubles from there


class RowStore:
    """Rows of `width` numbers, in bf16: the most exact codec of the wire.

    Args:
        width: numbers of a row.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.length = 0
        self._buffer = torch.empty(0, width, dtype=torch.bfloat16)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._buffer.nbytes

    def crop(self, length: int) -> None:
        """Forgets the rows from position `length` on."""
        self.length = min(self.length, length)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Puts `rows`, [count, width], at `start`; what stood there or behind it is gone.

        Raises:
            InternalError: a gap before `start`.
        """
        if start > self.length:
            raise InternalError(f"Rows from {start} were written to a store of {self.length}.")
        stop = start + rows.shape[0]
        if stop > self._buffer.shape[0]:
            grown = torch.empty(max(stop, 2 * self._buffer.shape[0], INITIAL_ROWS), self.width, dtype=torch.bfloat16)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:stop] = rows
        self.length = stop

    def read(self, start: int, stop: int) -> torch.Tensor:
        """[stop - start, width] bf16.

        Raises:
            InternalError: rows that are not held.
        """
        if not 0 <= start <= stop <= self.length:
            raise InternalError(f"Rows {start}..{stop} were asked of a store of {self.length}.")
        return self._buffer[start:stop]
