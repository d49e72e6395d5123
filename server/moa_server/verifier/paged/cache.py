"""Keys and values of one conversation in pages of the pool.

State: which pages, in the order of its rows. A cache that is dropped gives them back.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from moa_server.verifier.arrays import as_array
from moa_server.verifier.cache import KVCache
from moa_server.verifier.paged.batch import PAGE_ROWS
from moa_server.verifier.paged.pool import PagePool


class PagedCache(KVCache):
    """A cache whose rows are written by the forward, at `slots`."""

    def __init__(self, pool: PagePool) -> None:
        super().__init__()
        self.pages: list[int] = []
        self._pool = pool
        weakref.finalize(self, pool.give_back, self.pages).atexit = False

    @property
    def nbytes(self) -> int:
        return len(self.pages) * self._pool.page_nbytes

    def most_nbytes(self, rows: int) -> int:
        return -(-rows // PAGE_ROWS) * self._pool.page_nbytes

    def reserve(self, rows: int) -> None:
        needed = -(-rows // PAGE_ROWS) - len(self.pages)
        if needed > 0:
            self.pages += self._pool.take(needed)

    def slots(self, rows: Sequence[int]) -> list[int]:
        """Where rows of this conversation lie in the pool."""
        return [self.pages[row // PAGE_ROWS] * PAGE_ROWS + row % PAGE_ROWS for row in rows]

    def held_slots(self, start: int, stop: int) -> list[int]:
        """As `slots`, of the rows `start..stop`.

        Raises:
            InternalError: rows that are not held.
        """
        self._check_held(start, stop)
        return self.slots(range(start, stop))

    def _free(self) -> None:
        self._pool.give_back(self.pages)

    def _move(self, source: Sequence[int], start: int) -> None:
        self._pool.move(self.slots(source), self.slots(range(start, start + len(source))))

    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return in_order(self._pool.read(self.slots(range(start, stop))))


def in_order(rows: torch.Tensor) -> npt.NDArray[np.float32]:
    """Rows as the pool gives them as a cache does: [rows, layers, kv_heads, 2, head_dim]."""
    return as_array(rows.permute(2, 0, 3, 1, 4).contiguous())
