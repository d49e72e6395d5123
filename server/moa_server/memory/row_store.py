"""Rows of one plane of one session, kept so that a client that resumes can be sent them again.

State: pages of rows by position, which rows are held, and the newest ones that no page holds yet; owned by the
inference thread. Rows come in any order: the newest of a prompt first. Invariants: each held row belongs to the token
that the KV cache holds there; a page that another store holds too is never written, but copied first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt
from moa_kernels import PAGE_ROWS, Page
from moa_shared.bfloat16 import round_to_bfloat16, widen_bfloat16
from moa_shared.errors import InternalError
from moa_shared.protocol.messages import Plane

Rows = npt.NDArray[np.float32]

# Put into pages at once: one by one, the states of each step took as long as the rest of an answer's part in a forward,
# and most of them are never read.
ROWS_TOGETHER = 8


class OwnPlane(Enum):
    """Rows that are kept, and never sent."""

    STATE = "the state that enters the first layer which the server's drafter reuses, where the device's reuses others"


KeptPlane = Plane | OwnPlane


def most_nbytes(width: int, rows: int) -> int:
    """The most bytes that a store of `rows` rows takes."""
    return 2 * width * PAGE_ROWS * -(-rows // PAGE_ROWS)


class RowStore:
    """Rows of `width` numbers, in bf16: the most exact codec of the wire. `width`: numbers of a row."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._pages: list[Page | None] = []
        self._held = bytearray()  # 1 where the row is held
        self._new: list[Rows] = []  # rows of the positions from the one to before the other, in no page yet
        self._new_start = self._new_stop = 0

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in tuple(self._pages) if page is not None)

    def release(self) -> None:
        self.crop(0)

    def crop(self, length: int) -> None:
        if length < self._new_stop:
            if length <= self._new_start:
                self._new.clear()
            self._settle()
        del self._held[length:]
        first = -(-length // PAGE_ROWS)
        for page in self._pages[first:]:
            if page is not None:
                page.let_go()
        del self._pages[first:]

    def full_page(self, number: int) -> Page:
        """The page of the rows from 64 * `number` on, for others to hold."""
        start = number * PAGE_ROWS
        is_full = self.first_missing(start, start + PAGE_ROWS) == start + PAGE_ROWS
        page = self._pages[number] if is_full else None
        if page is None:
            raise InternalError(f"Page {number} of a store of rows is not full.")
        return page

    def replace_page(self, number: int, page: Page) -> None:
        """Holds `page`, whose rows are the same, in place of a full page."""
        before = self.full_page(number)
        self._pages[number] = page.hold()
        before.let_go()

    def adopt(self, pages: Sequence[Page]) -> None:
        held = [page.hold() for page in pages]
        self.release()
        self._pages.extend(held)
        self._held.extend(b"\x01" * (len(held) * PAGE_ROWS))

    def write(self, start: int, rows: Rows) -> None:
        if not self._new or start != self._new_stop:
            self._settle()
            self._new_start = start
        self._new.append(rows)
        self._new_stop = start + rows.shape[0]
        if self._new_stop - self._new_start >= ROWS_TOGETHER:
            self._settle()

    def _settle(self) -> None:
        if not self._new:
            return
        start, stop = self._new_start, self._new_stop
        rounded = round_to_bfloat16(np.concatenate(self._new))
        self._new.clear()
        self._pages.extend([None] * (-(-stop // PAGE_ROWS) - len(self._pages)))
        for number, first, last in _parts(start, stop):
            page = self._pages[number]
            page = Page(2 * self.width * PAGE_ROWS) if page is None else page.writable()
            self._pages[number] = page
            before = number * PAGE_ROWS
            self._bits(page)[first - before : last - before] = rounded[first - start : last - start]
        self._held.extend(bytes(max(0, stop - len(self._held))))
        self._held[start:stop] = b"\x01" * (stop - start)

    def first_missing(self, start: int, stop: int) -> int:
        """The first position of `start` to `stop` whose row is not held; `stop` where all are."""
        self._settle()
        missing = self._held.find(0, start, stop)
        return missing if missing >= 0 else min(stop, max(start, len(self._held)))

    def read(self, start: int, stop: int) -> Rows:
        """[stop - start, width] float32, as rounded to bf16."""
        if not 0 <= start <= stop or self.first_missing(start, stop) < stop:
            raise InternalError(f"Rows {start}..{stop} were requested from a store that does not hold them all.")
        rows = np.empty((stop - start, self.width), np.uint16)
        for number, first, last in _parts(start, stop):
            if (page := self._pages[number]) is not None:
                before = number * PAGE_ROWS
                rows[first - start : last - start] = self._bits(page)[first - before : last - before]
        return widen_bfloat16(rows)

    def _bits(self, page: Page) -> npt.NDArray[np.uint16]:
        """[64, width] bit patterns of bf16; a view."""
        return page.data.view(np.uint16).reshape(PAGE_ROWS, self.width)


def _parts(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The pages that `start` to `stop` lies in: the number of each, and which of the positions are in it."""
    for number in range(start // PAGE_ROWS, -(-stop // PAGE_ROWS)):
        yield number, max(start, number * PAGE_ROWS), min(stop, (number + 1) * PAGE_ROWS)
