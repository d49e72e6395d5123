"""The target's keys and values of one conversation: what all backends share.

State: the committed rows `0..length`, of which the last forward's rows (the *tail*) may still be cut down to one path.
Invariant: rows below `length` are never changed; how they are stored is the backend's affair.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_shared.errors import InternalError, TreeError


class KVCache(ABC):
    """Keys and values of one conversation; made by `Target.new_cache`."""

    def __init__(self) -> None:
        self._length = 0
        self._pending = 0  # rows that a forward is writing after `length`
        self._tail_start = 0
        self._tail_depths: tuple[int, ...] = ()  # of the last forward's rows, while they may be cut to a path
        self._tail_is_chain = True

    @property
    def length(self) -> int:
        """Rows held, the tail included."""
        return self._length

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the memory held (not only what is in use)."""

    @abstractmethod
    def most_nbytes(self, rows: int) -> int:
        """The most bytes that a cache takes while it grows to `rows` rows."""

    @abstractmethod
    def _free(self) -> None:
        """Give the memory of all rows back."""

    @abstractmethod
    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all, at once: a prompt of known length need not grow in steps."""

    @abstractmethod
    def _move(self, source: Sequence[int], start: int) -> None:
        """Copy the rows `source`, ascending and none before `start`, to `start` and following."""

    @abstractmethod
    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """[stop - start, layers, ...] float32: for each head in turn its rotated key and then its value.

        The layers are those with keys and values of their own; narrower ones have zeros behind their numbers.
        """

    def begin(self, count: int) -> None:
        """Make room for `count` rows after the last one; a forward calls this before it writes."""
        if not self._tail_is_chain:
            raise InternalError("The rows of a draft tree were not cut to a path before the next forward.")
        self.reserve(self._length + count)
        self._pending = count

    def end(self, depths: Sequence[int]) -> None:
        """Count the rows written since `begin` as held; `depths` are their depths in the tree, roots 0."""
        if len(depths) != self._pending:
            raise InternalError(f"{self._pending} rows were written, {len(depths)} are to be counted.")
        self._tail_start = self._length
        self._tail_depths = tuple(depths)
        self._tail_is_chain = all(depth == row for row, depth in enumerate(depths))
        self._length += self._pending
        self._pending = 0

    def keep(self, path: Sequence[int]) -> None:
        """Keep only `path` of the last forward's rows, moved together; nothing else is touched.

        `path`: rows of the last forward from a root downwards: depths 0, 1, 2... An empty path keeps none.
        """
        for depth, row in enumerate(path):
            if not 0 <= row < len(self._tail_depths) or self._tail_depths[row] != depth:
                raise TreeError(f"The rows {list(path)} are no path from the root of the last forward's tree.")
        moved = next((place for place, row in enumerate(path) if place != row), len(path))
        if moved < len(path):
            self._move([self._tail_start + row for row in path[moved:]], self._tail_start + moved)
        self._length = self._tail_start + len(path)
        self._forget_tail()

    def crop(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise InternalError(f"A cache of {self._length} rows cannot be cropped to {length}.")
        if not self._tail_is_chain and length > self._tail_start + 1:
            raise InternalError("A draft tree must be cut to a path, or dropped whole, before its rows are cropped.")
        self._length = length
        self._forget_tail()

    def release(self) -> None:
        self._length = 0
        self._forget_tail()
        self._free()

    def lsa_input(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The memory encoder's input for the rows `start..stop`.

        Returns:
            [stop - start, layers, KV width] float32; the last axis is, for each KV head in turn, its rotated key and
            then its value (the layout of arXiv 2410.03804's published code), and zeros in layers that are narrower than
            others. Layers that read the keys and values of others are left out. A copy of these rows only.
        """
        self._check_held(start, stop)
        return as_lsa_input(self._read(start, stop))

    def _check_held(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self._length:
            raise InternalError(f"Rows {start}..{stop} were requested from a cache of {self._length} rows.")

    def _forget_tail(self) -> None:
        self._tail_start, self._tail_depths, self._tail_is_chain = self._length, (), True


def as_lsa_input(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows as `KVCache._read` gives them, with one last axis as `KVCache.lsa_input` has it."""
    return rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:]))
