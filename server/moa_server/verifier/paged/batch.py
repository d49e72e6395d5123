"""The rows of one forward as arrays: those of all conversations in turn, then rows that fill it up to a fixed number.

Pure: numpy only. Invariant: a row that fills sees itself and nothing else, and nothing sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_shared.tree.arithmetic import ancestor_matrix

PAGE_ROWS = 64
SPARE_PAGE = 0  # no conversation's: rows that fill a batch are written there

Numbers = npt.NDArray[np.int64]
Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One conversation's rows.

    Args:
        tokens: of the rows.
        depths: of the rows below the last token of the prefix, whose children have depth 0.
        prefix: rows that it already holds.
        pages: that hold them, and have room for the new ones behind them.
        parents: of the rows in the tree; None for a chain.
    """

    tokens: Sequence[int]
    depths: Sequence[int]
    prefix: int
    pages: Sequence[int]
    parents: Sequence[int] | None = None

    @property
    def length(self) -> int:
        """Rows held once these are written."""
        return self.prefix + len(self.tokens)

    def seen(self) -> Seen:
        """[rows, rows]: which of the new rows each of them sees."""
        if self.parents is None:
            return np.tri(len(self.tokens), dtype=np.bool_)
        return ancestor_matrix(self.parents)

    def used_pages(self) -> Sequence[int]:
        """The pages that hold all of its rows."""
        return self.pages[: -(-self.length // PAGE_ROWS)]


@dataclass(frozen=True, slots=True)
class Run:
    """One forward, as each process that has a share of the target computes it.

    Args:
        rows: that the forward is filled up to; 0: it is not.
        chosen: rows that the head runs on.
        layers: whose entering state is wanted; as many as there are layers: what leaves the last.
    """

    parts: Sequence[BatchPart]
    rows: int
    chosen: Sequence[int]
    layers: Sequence[int]


FILLER = BatchPart([0], [0], 0, [SPARE_PAGE])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of several conversations.

    Args:
        parts: in the order of the rows; the last ones may be `FILLER`.
        tokens: [rows]; `positions`: in their text; `slots`: where their keys and values are written.
    """

    parts: Sequence[BatchPart]
    tokens: Numbers
    positions: Numbers
    slots: Numbers

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def firsts(self) -> list[int]:
        """The first row of each part, and the number of all rows."""
        return [0, *np.cumsum([len(part.tokens) for part in self.parts]).tolist()]

    @property
    def is_causal(self) -> bool:
        """Whether all parts are chains."""
        return all(part.parents is None for part in self.parts)


def lay_out(parts: Sequence[BatchPart], rows: int = 0) -> Batch:
    """The arrays of a forward over `parts`, filled up to `rows` rows if there are fewer."""
    count = sum(len(part.tokens) for part in parts)
    parts = [*parts, *[FILLER] * max(0, rows - count)]
    tokens = np.concatenate([np.asarray(part.tokens, np.int64) for part in parts])
    positions = np.concatenate([part.prefix + np.asarray(part.depths, np.int64) for part in parts])
    return Batch(parts, tokens, positions, np.concatenate([_slots(part) for part in parts]))


def _slots(part: BatchPart) -> Numbers:
    rows = np.arange(part.prefix, part.length)
    return np.asarray(part.pages, np.int64)[rows // PAGE_ROWS] * PAGE_ROWS + rows % PAGE_ROWS


def bucket(rows: int) -> int:
    """The number of rows that a forward of so many is filled up to: the next power of two."""
    return 1 << (rows - 1).bit_length()
