"""Keys and values of one session, in pages of 64 positions that never move.

Slots are numbered from 0 in the order in which rows were written; which token stands in a slot, and at which position,
is the caller's affair. State: the pages and the number of rows held. Invariant: growing copies nothing.
"""

from __future__ import annotations

import ctypes as ct
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import LANES, PAGE_ROWS, CCache, address, aligned_zeros
from moa_kernels.blocks import Rows
from moa_kernels.errors import KernelError
from moa_kernels.library import library


class Cache:
    """Grows at the end, is cut at the end.

    Args:
        head_dim: a multiple of 32.
        half: keep float16 instead of float32; rounded once, when written, so that results do not depend on what is
            computed together.

    Raises:
        KernelError: another head dimension.
    """

    _head_divisor = 2 * LANES

    def __init__(self, layers: int, kv_heads: int, head_dim: int, *, half: bool) -> None:
        if head_dim % self._head_divisor:
            raise KernelError(f"Heads of {head_dim} numbers are not computed by the kernels: no multiple of 32.")
        self.layers, self.kv_heads, self.head_dim, self.half = layers, kv_heads, head_dim, half
        self.length = 0
        self._pages: list[npt.NDArray[np.uint8]] = []
        self._table = np.zeros(16, np.uint64)  # addresses of the pages

    @property
    def nbytes(self) -> int:
        """Bytes of the pages (memory held, not only what is in use)."""
        return len(self._pages) * self._page_bytes

    def most_nbytes(self, rows: int) -> int:
        """Bytes of the pages of `rows` rows."""
        return -(-rows // PAGE_ROWS) * self._page_bytes

    @property
    def _page_bytes(self) -> int:
        return self.layers * self.kv_heads * 2 * PAGE_ROWS * self.head_dim * (2 if self.half else 4)

    @property
    def table(self) -> int | None:
        """Address of the page table; valid until the next `reserve`."""
        return address(self._table)

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` rows in all.

        Raises:
            MemoryError: there is none; what is held stays as it is.
        """
        while len(self._pages) * PAGE_ROWS < rows:
            page = aligned_zeros(self._page_bytes)
            if len(self._pages) == len(self._table):
                self._table = np.concatenate((self._table, np.zeros_like(self._table)))
            self._table[len(self._pages)] = page.ctypes.data
            self._pages.append(page)

    def release(self) -> None:
        """Forgets all rows and gives their pages back."""
        self.length = 0
        self._pages.clear()

    def crop(self, length: int) -> None:
        """Forgets the rows from `length` on; their pages are kept for what comes next.

        Raises:
            KernelError: a negative length.
        """
        if length < 0:
            raise KernelError(f"A cache of {self.length} rows cannot be cropped to {length}.")
        self.length = min(self.length, length)

    def write(self, layer: int, keys: Rows, values: Rows) -> None:
        """Writes rows of one layer behind the rows held. They count as held once `length` says so.

        Args:
            keys: rotated, [rows, kv_heads, head_dim]; `values` alike.
        """
        self._check_rows(layer, keys, values)
        self.reserve(self.length + len(keys))
        keys, values = np.ascontiguousarray(keys, np.float32), np.ascontiguousarray(values, np.float32)
        _loaded().moa_cache_write(ct.byref(self._c()), layer, self.length, len(keys), address(keys), address(values))

    def read(self, start: int, stop: int) -> Rows:
        """Rows as [stop - start, layers, kv_heads, 2, head_dim] float32; rotated keys stand before values.

        Raises:
            KernelError: rows that are not held.
        """
        self._check_read(start, stop)
        out = np.empty((stop - start, self.layers, self.kv_heads, 2, self.head_dim), np.float32)
        _loaded().moa_cache_read(ct.byref(self._c()), start, stop - start, address(out))
        return out

    def keep_behind(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows from `start` on keeps only these, in ascending order; they are numbered from 0.

        Raises:
            KernelError: rows that are not held, or not in order.
        """
        self._check_kept(start, rows)
        moved = next((place for place, row in enumerate(rows) if place != row), len(rows))
        if moved < len(rows):
            source = np.asarray(rows[moved:], np.int32) + np.int32(start)
            target = np.arange(start + moved, start + len(rows), dtype=np.int32)
            _loaded().moa_cache_move(ct.byref(self._c()), len(source), address(source), address(target))
        self.length = start + len(rows)

    def move_last(self, rows: int, by: int) -> None:
        """Makes a gap of `by` unwritten rows before the last `rows` rows; the cache is that much longer.

        Raises:
            KernelError: rows that are not held.
        """
        self._check_moved(rows, by)
        stop = self.length
        self.reserve(stop + by)
        source = np.arange(stop - 1, stop - 1 - rows, -1, dtype=np.int32)  # from the end: none is overwritten unread
        target = source + np.int32(by)
        _loaded().moa_cache_move(ct.byref(self._c()), len(source), address(source), address(target))
        self.length = stop + by

    def _check_rows(self, layer: int, keys: Rows, values: Rows) -> None:
        shape = (len(keys), self.kv_heads, self.head_dim)
        if keys.shape != shape or values.shape != shape or not 0 <= layer < self.layers:
            raise KernelError(f"Keys of the shape {keys.shape} do not fit a cache whose rows are {shape[1:]}.")

    def _check_read(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.length:
            raise KernelError(f"Rows {start}..{stop} were asked of a cache of {self.length} rows.")

    def _check_kept(self, start: int, rows: Sequence[int]) -> None:
        held = self.length - start
        if (
            not 0 <= start <= self.length
            or any(not 0 <= row < held for row in rows)
            or any(b <= a for a, b in itertools.pairwise(rows))
        ):
            raise KernelError(f"The rows {list(rows)} cannot be kept of {held}.")

    def _check_moved(self, rows: int, by: int) -> None:
        if not 0 <= rows <= self.length or by < 0:
            raise KernelError(f"The last {rows} of {self.length} rows cannot be moved by {by}.")

    def _c(self) -> CCache:
        return CCache(self.layers, self.kv_heads, self.head_dim, int(self.half), self.table)


def _loaded() -> Any:
    loaded = library()
    if loaded is None:
        raise KernelError("A cache of the kernels was used without kernels.")
    return loaded
