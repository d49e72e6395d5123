"""Keys and values of one session in pages of 64 positions that never move, and the states beside them.

Slots are numbered from 0 in the order in which rows were written; which token stands in a slot, and at which position,
is the caller's affair. Invariants: growing copies nothing; who writes a page is its only holder, so a page that another
cache holds too is copied first. One thread at a time may touch the pages of a group of holders.
"""

from __future__ import annotations

import ctypes as ct
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from moa_kernels.bindings import (
    F16,
    F32,
    KV_FORMATS,
    PAGE_ROWS,
    Q8,
    CCache,
    CHeads,
    KernelError,
    address,
)
from moa_kernels.blocks import Rows
from moa_kernels.library import library
from moa_kernels.transformer.pages import Page
from moa_kernels.transformer.states import Snapshot, States, StateShape


class Heads(NamedTuple):
    """The heads of a layer's keys, and of its values: how many, and of how many numbers each."""

    number: int
    dim: int

    @property
    def width(self) -> int:
        return 2 * self.number * self.dim

    def nbytes(self, kv: str) -> int:
        return 2 * self.number * {F32: 4 * self.dim, F16: 2 * self.dim, Q8: self.dim + 4}[kv]


class Cache:
    """Grows at the end, is cut at the end. Rows that are not held are a KernelError; MemoryError changes nothing.

    `heads`: of each layer, as a stack has checked them. `kv`: how they are kept: f32, f16, or q8 (8 bits with a float32
    scale for each row of a head). They are rounded once, when written, so that results do not depend on what is
    computed together. `states`: of each gated delta net beside these layers. A state cannot be cut, so `crop` says
    where it went.
    """

    def __init__(self, heads: Sequence[Heads], *, kv: str, states: Sequence[StateShape] = ()) -> None:
        if kv not in KV_FORMATS:
            raise KernelError(f"Keys and values cannot be kept as {kv!r}. There are {', '.join(KV_FORMATS)}.")
        self.heads, self.kv, self.states = tuple(heads), kv, States(states)
        self.width = max((each.width for each in heads), default=0)  # numbers of a row of the widest layer
        self._c_heads = (CHeads * len(heads))(*(CHeads(*each) for each in heads))
        self._page_bytes = PAGE_ROWS * sum(each.nbytes(kv) for each in heads)
        self.length = 0
        self._pages: list[Page] = []
        self._table = np.zeros(16, np.uint64)  # addresses of the pages

    @property
    def nbytes(self) -> int:
        return len(self._pages) * self._page_bytes + self.states.nbytes

    def most_nbytes(self, rows: int) -> int:
        """With one state, without snapshots and what drafted rows leave."""
        return -(-rows // PAGE_ROWS) * self._page_bytes + self.states.state_nbytes

    @property
    def table(self) -> int | None:
        """Address of the page table; valid until the next `make_writable`."""
        return address(self._table)

    def reserve(self, rows: int) -> None:
        while len(self._pages) * PAGE_ROWS < rows:
            self._append(Page(self._page_bytes))

    def make_writable(self, start: int, stop: int) -> None:
        """Makes room for `stop` rows in all, of which those from `start` on may be written."""
        self.reserve(stop)
        for number in range(start // PAGE_ROWS, min(-(-stop // PAGE_ROWS), len(self._pages))):
            self._put(number, self._pages[number].writable())

    def full_page(self, number: int) -> Page:
        """The page of the rows from 64 * `number` on, for others to hold."""
        if not 0 <= number < self.length // PAGE_ROWS:
            raise KernelError(f"Page {number} of a cache of {self.length} rows is not full.")
        return self._pages[number]

    def replace_page(self, number: int, page: Page) -> None:
        """Holds `page`, whose rows are the same, in place of a full page."""
        before = self.full_page(number)
        self._put(number, page.hold())
        before.let_go()

    def adopt(self, pages: Sequence[Page], snapshot: Snapshot | None = None) -> None:
        """Holds these full pages of another cache, and nothing else; `snapshot`: of the states at their end."""
        rows = len(pages) * PAGE_ROWS
        if self.states.shapes and rows != (0 if snapshot is None else snapshot.rows):
            at = "no snapshot" if snapshot is None else f"a snapshot of {snapshot.rows}"
            raise KernelError(f"A cache cannot hold {rows} rows of another with {at}.")
        self.release()
        for page in pages:
            self._append(page.hold())
        self.length = rows
        if snapshot is not None:
            self.states.restore(snapshot)

    def release(self) -> None:
        self.length = 0
        self.states.release()
        self._drop_pages(0)

    def crop(self, length: int) -> int:
        """Forgets the rows from `length` on; their pages are kept for what comes next, unless others hold them.

        Returns the new length, which is lower where states have taken in more rows, or are torn: that of a snapshot.
        """
        if length < 0:
            raise KernelError(f"A cache of {self.length} rows cannot be cropped to {length}.")
        self.length = min(self.length, length)
        if self.states.shapes:
            self.length = self.states.crop(self.length)
        needed = -(-self.length // PAGE_ROWS)
        if any(page.holders > 1 for page in self._pages[needed:]):
            self._drop_pages(needed)
        return self.length

    def snapshot(self) -> Snapshot:
        """A copy of the states, which have taken in all rows; held until they forget it, or a crop to before it."""
        return self.states.snapshot(self.length)

    def write(self, layer: int, keys: Rows, values: Rows) -> None:
        """Writes rows of one layer behind the rows held. They count as held once `length` says so.

        `keys`: rotated, [rows, heads, their numbers]; `values` alike.
        """
        self._check_rows(layer, keys, values)
        self.make_writable(self.length, self.length + len(keys))
        keys, values = np.ascontiguousarray(keys, np.float32), np.ascontiguousarray(values, np.float32)
        _loaded().moa_cache_write(ct.byref(self._c()), layer, self.length, len(keys), address(keys), address(values))

    def read(self, start: int, stop: int, layer: int | None = None) -> Rows:
        """Rows as [stop - start, layers, width] float32: for each head in turn its rotated key and then its value.

        A layer with fewer numbers than the widest has zeros behind them. `layer`: that one alone, of its own width."""
        self._check_read(start, stop)
        layers = range(len(self.heads)) if layer is None else range(layer, layer + 1)
        out = np.zeros((stop - start, len(layers), max(self.heads[each].width for each in layers)), np.float32)
        self._read(out, layers, start)
        return out

    def _read(self, out: Rows, layers: range, start: int) -> None:
        count, _, width = out.shape
        _loaded().moa_cache_read(ct.byref(self._c()), layers.start, len(layers), start, count, width, address(out))

    def keep_behind(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows from `start` on keeps only these, in ascending order; they are numbered from 0.

        Drafted rows that are kept wait until the next forward, which advances the states by them first.
        """
        self._check_kept(start, rows)
        moved = next((place for place, row in enumerate(rows) if place != row), len(rows))
        if moved < len(rows):
            self.make_writable(start + moved, start + len(rows))
        if self.states.shapes:
            self.states.keep(start, rows)
        if moved < len(rows):
            source = np.asarray(rows[moved:], np.int32) + np.int32(start)
            target = np.arange(start + moved, start + len(rows), dtype=np.int32)
            _loaded().moa_cache_move(ct.byref(self._c()), len(source), address(source), address(target))
        self.length = start + len(rows)

    def move_last(self, rows: int, by: int) -> None:
        """Makes a gap of `by` unwritten rows before the last `rows` rows; the cache is that much longer."""
        self._check_moved(rows, by)
        stop = self.length
        self.make_writable(stop - rows + by, stop + by)
        source = np.arange(stop - 1, stop - 1 - rows, -1, dtype=np.int32)  # from the end: none is overwritten unread
        target = source + np.int32(by)
        _loaded().moa_cache_move(ct.byref(self._c()), len(source), address(source), address(target))
        self.length = stop + by

    def _append(self, page: Page) -> None:
        if len(self._pages) == len(self._table):
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        self._pages.append(page)
        self._put(len(self._pages) - 1, page)

    def _put(self, number: int, page: Page) -> None:
        self._pages[number] = page
        self._table[number] = page.data.ctypes.data

    def _drop_pages(self, first: int) -> None:
        for page in self._pages[first:]:
            page.let_go()
        del self._pages[first:]

    def _check_rows(self, layer: int, keys: Rows, values: Rows) -> None:
        if not 0 <= layer < len(self.heads):
            raise KernelError(f"Keys of layer {layer} were written into a cache of {len(self.heads)} layers.")
        shape = (len(keys), *self.heads[layer])
        if keys.shape != shape or values.shape != shape:
            raise KernelError(f"Keys of the shape {keys.shape} do not fit a cache whose rows are {shape[1:]}.")

    def _check_read(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.length:
            raise KernelError(f"Rows {start}..{stop} were requested from a cache of {self.length} rows.")

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
        return CCache(len(self.heads), KV_FORMATS.index(self.kv), self._c_heads, self.table)


def _loaded() -> Any:
    loaded = library()
    if loaded is None:
        raise KernelError("A cache of the kernels was used without kernels.")
    return loaded
