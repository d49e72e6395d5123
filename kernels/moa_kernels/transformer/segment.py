"""One session's rows in a forward: where they are written, at which positions, and what each of them sees. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_kernels.formats import KernelError
from moa_kernels.transformer.cache import Cache

Numbers = npt.NDArray[np.int32]
_NO_TAIL = np.zeros(1, np.int32)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one session.

    A row sees the slots 0 to seen - 1, and then those of its tail, which are ascending and not below `seen`. It must
    be among them itself, except in a stack that reads memory.

    Args:
        first_slot: where the first row is written; the others follow.
        positions: [rows] for the rotary angles.
        seen: [rows].
        tail_start: [rows + 1], where each row's part of `tail` begins.
    """

    cache: Cache
    first_slot: int
    positions: Numbers
    seen: Numbers
    tail_start: Numbers
    tail: Numbers

    @property
    def rows(self) -> int:
        return len(self.positions)

    def check(self, *, writes: bool) -> None:
        """Raises KernelError for rows that see slots which hold nothing: C would read beyond the cache.

        `writes`: whether the rows themselves come into the cache.
        """
        rows, slots = self.rows, self.first_slot + (self.rows if writes else 0)
        fits = (
            0 <= self.first_slot <= self.cache.length
            and len(self.seen) == rows
            and len(self.tail_start) == rows + 1
            and all(each.dtype == np.int32 and each.flags.c_contiguous for each in self._arrays)
        )
        if not rows:
            fits = fits and not len(self.tail)
        elif fits:
            least, most = int(self.seen.min()), int(self.seen.max())
            fits = least >= 0 and most <= slots and int(self.positions.min()) >= 0
            if len(self.tail):
                fits = fits and self._tails_fit(slots)
            else:  # the usual case, of chains and of memory, is looked at most quickly
                fits = fits and least > 0 and not self.tail_start.any()
        if not fits:
            raise KernelError(f"{rows} rows of a forward see slots that their cache of {slots} rows does not hold.")

    def _tails_fit(self, slots: int) -> bool:
        """Whether the tails are parts of `tail`, ascending, not below `seen`, and of slots that exist."""
        starts, tail = self.tail_start, self.tail
        counts = starts[1:] - starts[:-1]
        if starts[0] != 0 or starts[-1] != len(tail) or counts.min() < 0 or (self.seen + counts).min() <= 0:
            return False
        rises = tail[1:] > tail[:-1]
        firsts = starts[1:-1]
        rises[firsts[(firsts > 0) & (firsts < len(tail))] - 1] = True
        return bool(rises.all()) and bool((tail >= np.repeat(self.seen, counts)).all()) and int(tail.max()) < slots

    @property
    def _arrays(self) -> tuple[Numbers, ...]:
        return self.positions, self.seen, self.tail_start, self.tail

    @classmethod
    def chain(cls, cache: Cache, rows: int, position: int | None = None) -> Segment:
        """Rows that follow one another behind all that the cache holds.

        `position`: of the first row; None: as many as the cache holds.
        """
        slot = cache.length
        steps = np.arange(rows, dtype=np.int32)
        positions = steps + np.int32(slot if position is None else position)
        return cls(cache, slot, positions, steps + np.int32(slot + 1), np.zeros(rows + 1, np.int32), _NO_TAIL[:0])

    @classmethod
    def tree(cls, cache: Cache, parents: Sequence[int], known: int = 0, position: int | None = None) -> Segment:
        """Nodes of a tree; each sees what stood before the tree, its ancestors and itself.

        Args:
            parents: of all nodes, in order of their slots; -1: what stood before the tree.
            known: how many of the nodes are in the cache already, as its last rows; the others are the segment's rows.
            position: of a node whose parent is -1; None: as many as stood before the tree.
        """
        before = cache.length - known
        first = before if position is None else position
        runs: list[int] = []  # of each node: how many of its first ancestors stand right behind `before`, one by one
        tails: list[tuple[int, ...]] = []  # and the slots of the others
        for node, parent in enumerate(parents):
            run, tail = (runs[parent], tails[parent]) if parent >= 0 else (0, ())
            if not tail and run == node:
                run += 1
            else:
                tail = (*tail, before + node)
            runs.append(run)
            tails.append(tail)
        runs, tails = runs[known:], tails[known:]
        counts = np.array([len(tail) for tail in tails], np.int32)
        seen = np.array(runs, np.int32)
        return cls(
            cache,
            cache.length,
            seen + counts + np.int32(first - 1),
            seen + np.int32(before),
            np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
            np.array([slot for tail in tails for slot in tail], np.int32),
        )

    @classmethod
    def memory(cls, cache: Cache, positions: Numbers) -> Segment:
        """Rows that see all that the cache holds and write nothing: for a stack that reads memory."""
        rows = len(positions)
        seen = np.full(rows, cache.length, np.int32)
        return cls(cache, cache.length, positions, seen, np.zeros(rows + 1, np.int32), _NO_TAIL[:0])
