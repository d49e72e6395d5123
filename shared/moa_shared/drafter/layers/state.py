"""What the state of every kind of drafter has, and the memory rows that some of them hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache

from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.drafter.layers.placement import DraftNodes
from moa_shared.errors import InternalError, ProtocolError


class BaseState:
    """What each implementation of `ConversationDrafter` has: its committed tokens, and the nodes of its draft.

    Args:
        token_ids: the target's token of each column of the logits; None: the same.
    """

    def __init__(self, token_ids: npt.NDArray[np.int64] | None) -> None:
        self.token_ids = token_ids
        self.tokens: list[int] = []
        self._nodes = DraftNodes()
        self._drafting = False

    @property
    def most_depth(self) -> int | None:
        """The levels that come with the first one, and the most that a draft has; None: a level at a time, no limit."""
        return None

    @property
    def next_position(self) -> int:
        return len(self.tokens)

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Adds the state that enters the first reused layer, [rows, hidden size] float32, where layers are reused."""

    def catch_up(self, most: int) -> bool:
        """As of `ConversationDrafter`; there is no need to for kinds that begin fast, however long the text is."""
        return True

    def _check_begin(self) -> None:
        if not self.tokens:
            raise InternalError("A draft was begun before there was any token.")

    def _check_expand(self, tokens: Sequence[int]) -> None:
        if not self._drafting:
            raise InternalError("Draft nodes were added before a draft was begun.")
        if not tokens:
            raise InternalError("A draft was to grow by no nodes.")


Write = Callable[[Cache, Rows, npt.NDArray[np.int32]], None]
_BATCH = 512  # rows at once: bounds what is held next to the cache


class MemoryCache:
    """What a drafter holds of the rows that its server has sent."""

    def __init__(self, cache: Cache, width: int, write: Write) -> None:
        self.cache = cache
        self._width = width
        self._write = write
        self._positions: list[int] = []  # by row
        self._held: set[int] = set()  # the same

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, start: int, rows: Rows) -> None:
        """Adds rows, [rows, width] float32, of positions from `start`; those already held are skipped."""
        if rows.shape[-1] != self._width:
            raise ProtocolError(f"memory rows of {self._width} numbers", f"{rows.shape[-1]}")
        new = [index for index in range(len(rows)) if start + index not in self._held]
        for first in range(0, len(new), _BATCH):
            batch = new[first : first + _BATCH]
            self._write(self.cache, rows[batch], np.array(batch, np.int32) + np.int32(start))
        positions = [start + index for index in new]
        self._positions += positions
        self._held.update(positions)

    def rows_from(self, position: int) -> list[int]:
        """The cache's rows of this position and later ones, ascending."""
        if max(self._held, default=-1) < position:
            return []
        return [row for row, each in enumerate(self._positions) if each >= position]

    def crop(self, length: int) -> None:
        if max(self._held, default=-1) < length:
            return
        kept = [row for row, position in enumerate(self._positions) if position < length]
        self.cache.keep_behind(0, kept)
        self._positions = [self._positions[row] for row in kept]
        self._held = set(self._positions)
