"""The rows of one session in a forward: where they are written, what each sees, and which of them are drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moa_kernels.bindings import KernelError
from moa_kernels.transformer.cache import Cache
from moa_kernels.transformer.states import Numbers

_NO_TAIL = np.zeros(1, np.int32)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one session.

    A row sees the slots 0 to seen - 1, and then those of its tail, which are ascending and not below `seen`. It must
    be among them itself, except in a stack that reads memory.
    """

    cache: Cache
    first_slot: int  # where the first row is written; the others follow
    positions: Numbers  # [rows] for the rotary angles
    seen: Numbers  # [rows]
    tail_start: Numbers  # [rows + 1], where each row's part of `tail` begins
    tail: Numbers
    # How many of the last rows are drafts, which do not advance states; those beyond `rows` are the cache's last ones.
    drafted: int = 0

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def known(self) -> int:
        """How many of the cache's last rows are drafts that these rows may follow."""
        return max(self.drafted - self.rows, 0)

    @property
    def parents(self) -> Numbers:
        """Which one each known draft that a row follows, and each row, follows itself, numbered in this order.

        -1: what the cache held before all of them.
        """
        if not (known := self.known):
            return self._seen_before(1)
        parents, base = np.full(known + self.rows, -1, np.int32), self.first_slot - known
        for row, seen in enumerate(self.seen):
            tail = self.tail[self.tail_start[row] : self.tail_start[row + 1]]
            path = np.concatenate((np.arange(base, seen, dtype=np.int32), tail)) - np.int32(base)
            parents[path[1:]] = path[:-1]
        return parents

    def _seen_before(self, steps: int) -> Numbers:
        """The slot that each row sees so many steps before the last one, numbered from the segment's first."""
        counts = self.tail_start[1:] - self.tail_start[:-1]
        slots = self.seen - np.int32(1 + steps) + counts
        in_tail = counts > steps
        slots[in_tail] = self.tail[self.tail_start[1:][in_tail] - np.int32(1 + steps)]
        return slots - np.int32(self.first_slot)

    def check(self, *, writes: bool) -> None:
        """Raises KernelError for rows that see slots which hold nothing: C would read beyond the cache.

        `writes`: whether the rows themselves come into the cache.
        """
        rows, slots = self.rows, self.first_slot + (self.rows if writes else 0)
        arrays = self.positions, self.seen, self.tail_start, self.tail
        fits = (
            0 <= self.first_slot <= self.cache.length
            and len(self.seen) == rows
            and len(self.tail_start) == rows + 1
            and all(each.dtype == np.int32 and each.flags.c_contiguous for each in arrays)
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
        if self.cache.states.shapes:
            self._check_states()

    def _check_states(self) -> None:
        """Raises KernelError for rows that states cannot follow."""
        waiting = self.cache.states.waiting(self.cache.length)
        rows, own = self.rows, np.arange(self.rows, dtype=np.int32)
        committed, parents = max(rows - self.drafted, 0), self._seen_before(1)
        if not (
            self.drafted >= 0
            and self.known <= len(waiting)
            and self.first_slot == self.cache.length
            and np.array_equal(self._seen_before(0), own)
            and np.array_equal(parents[:committed], own[:committed] - 1)
            and bool((parents[committed:] >= committed - 1 - self.known).all())
        ):
            raise KernelError(
                f"{rows} rows, of which the last {self.drafted} are drafts, cannot follow the states of"
                f" {self.cache.length} rows: committed rows are a chain, and drafts stand on its end."
            )

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

    @classmethod
    def chain(
        cls, cache: Cache, rows: int, position: int | None = None, slot: int | None = None, drafted: int = 0
    ) -> Segment:
        """Rows that follow one another from a slot on; None: behind all that the cache holds.

        `position`: of the first row; None: its slot. `drafted`: how many of the last rows are drafts.
        """
        first = cache.length if slot is None else slot
        steps = np.arange(rows, dtype=np.int32)
        positions = steps + np.int32(first if position is None else position)
        seen = steps + np.int32(first + 1)
        return cls(cache, first, positions, seen, np.zeros(rows + 1, np.int32), _NO_TAIL[:0], drafted)

    @classmethod
    def tree(
        cls, cache: Cache, parents: Sequence[int], known: int = 0, position: int | None = None, drafted: int = 0
    ) -> Segment:
        """Nodes of a tree; each sees what stood before the tree, its ancestors and itself.

        Args:
            parents: of all nodes, in order of their slots; -1: what stood before the tree.
            known: how many of the nodes are in the cache already, as its last rows; the others are the segment's rows.
            position: of a node whose parent is -1; None: as many as stood before the tree.
            drafted: how many of the last rows are drafts.
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
            drafted,
        )

    @classmethod
    def memory(cls, cache: Cache, positions: Numbers) -> Segment:
        """Rows that see all that the cache holds and write nothing: for a stack that reads memory."""
        rows = len(positions)
        seen = np.full(rows, cache.length, np.int32)
        return cls(cache, cache.length, positions, seen, np.zeros(rows + 1, np.int32), _NO_TAIL[:0])
