"""What the state of every kind of drafter has: nodes, rows and where they go, and memory that some hold."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Segment

from moa_shared.drafter.kinds.weights import Rows
from moa_shared.errors import InternalError, ProtocolError
from moa_shared.tree import ROOT, add_depths, subtree

Indices = npt.NDArray[np.int32]
Placement = Callable[[Cache], Segment]  # the rows as they follow what this cache holds
_BATCH = 512  # rows per pass: bounds what a forward holds


class BaseState:
    """What each implementation of `ConversationDrafter` has: its committed tokens, and the nodes of its draft.

    `token_ids`: the target's token of each column of the logits; None: the same.
    """

    # The levels that come with the first one, and the most that a draft has; None: a level at a time, no limit.
    most_depth: int | None = None

    def __init__(self, token_ids: npt.NDArray[np.int64] | None) -> None:
        self.token_ids = token_ids
        self.tokens: list[int] = []
        self._nodes = DraftNodes()
        self._drafting = False

    @property
    def next_position(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        self.tokens.extend(tokens)
        self._drop_draft()
        return None

    def crop(self, length: int) -> None:
        del self.tokens[length:]
        self._drop_draft()

    def append_memory(self, start: int, rows: Rows) -> None:
        """Does nothing for kinds that read the text alone."""

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Adds the state that enters the first reused layer, [rows, hidden size] float32, where layers are reused."""

    def catch_up(self, most: int) -> bool:
        return True

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()

    def _begin(self) -> None:
        if not self.tokens:
            raise InternalError("A draft was begun before there was any token.")
        self._drop_draft()

    def _add(self, tokens: Sequence[int], parents: Sequence[int]) -> int:
        """Adds nodes to the draft; how many it had."""
        if not self._drafting or not tokens:
            raise InternalError("Draft nodes were added before a draft was begun, or none were added.")
        known = len(self._nodes)
        self._nodes.add(tokens, parents)
        return known


class TextState(BaseState, ABC):
    """A state whose cache holds the first `_read` committed tokens, and below them the draft under way.

    Invariant: rows of an abandoned draft are not in it. Where its cache cannot be cut there, `_read` goes back too.
    """

    def __init__(self, token_ids: npt.NDArray[np.int64] | None, cache: Cache) -> None:
        super().__init__(token_ids)
        self._cache = cache
        self._read = 0

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        self.tokens.extend(tokens)
        if not self._drafting:
            return None
        nodes = len(self._nodes)
        path, kept = self._nodes.advance(tokens)
        rows = [*path, *(kept or ())]
        self._cache.keep_behind(self._read, rows)  # a token's row there does not depend on what came before it
        self._read += len(path)
        if kept is None:
            self._drop_draft()
        else:
            self._re_root(nodes, rows)
        return kept

    def crop(self, length: int) -> None:
        self._read = min(self._read, length)
        super().crop(length)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        known = self._add(tokens, parents)
        return self._logits_after(tokens, draft_rows(self._nodes, known, len(self.tokens) - 1))

    @abstractmethod
    def _logits_after(self, tokens: Sequence[int], place: Placement) -> Rows:
        """Of new rows, which are appended to the cache."""

    def _re_root(self, nodes: int, kept: Sequence[int]) -> None:
        """Keeps only these of a draft's `nodes` rows, in what else a kind holds."""

    def _text(self, positions: range) -> list[int]:
        return self.tokens[positions.start : positions.stop]

    def _drop_draft(self) -> None:
        super()._drop_draft()
        self._read = self._cache.crop(self._read)


class MemoryCache:
    def __init__(self, cache: Cache, width: int, write: Callable[[Cache, Rows, Indices], None]) -> None:
        self.cache = cache
        self._width = width
        self._write = write
        self._positions: dict[int, None] = {}  # in the order of the cache's rows

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, start: int, rows: Rows) -> None:
        """Adds rows, [rows, width] float32, of positions from `start`; those already held are skipped."""
        if rows.shape[-1] != self._width:
            raise ProtocolError(f"memory rows of {self._width} numbers", f"{rows.shape[-1]}")
        new = [index for index in range(len(rows)) if start + index not in self._positions]
        for first in range(0, len(new), _BATCH):
            batch = new[first : first + _BATCH]
            self._write(self.cache, rows[batch], np.array(batch, np.int32) + np.int32(start))
        self._positions.update(dict.fromkeys(start + index for index in new))

    def rows_from(self, position: int) -> list[int]:
        """The cache's rows of this position and later ones, ascending."""
        if max(self._positions, default=-1) < position:
            return []
        return [row for row, each in enumerate(self._positions) if each >= position]

    def rows_between(self, first: int, stop: int) -> Indices:
        """The cache's rows of positions from `first` to before `stop`, ascending."""
        positions = np.fromiter(self._positions, np.int32, len(self._positions))
        return np.flatnonzero((positions >= first) & (positions < stop)).astype(np.int32)

    def crop(self, length: int) -> None:
        if max(self._positions, default=-1) < length:
            return
        self.cache.keep_behind(0, [row for row, position in enumerate(self._positions) if position < length])
        self._positions = {position: None for position in self._positions if position < length}


class DraftNodes:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.is_chain = True

    def __len__(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        self.tokens, self.parents, self.depths, self.is_chain = [], [], [], True

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Adds nodes; a parent comes before its child (-1: the root)."""
        self.is_chain = self.is_chain and all(parent == at for at, parent in enumerate(parents, len(self) - 1))
        self.tokens += tokens
        self.parents += parents
        add_depths(self.depths, parents)

    def advance(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Makes the node that these committed tokens lead to the root.

        Gives the nodes that the tokens follow, and former numbers of those below the last token, now numbered 0, 1,
        ...; None where the tokens have left the nodes, of which none is kept then.
        """
        path: list[int] = []
        for token in tokens:
            node = path[-1] if path else ROOT
            below = (at for at in range(node + 1, len(self)) if self.parents[at] == node)
            child = next((at for at in below if self.tokens[at] == token), None)
            if child is None:
                self.clear()
                return tuple(path), None
            path.append(child)
        if not path:
            return (), tuple(range(len(self)))
        kept, parents = subtree(self.parents, path[-1])
        tokens = [self.tokens[node] for node in kept]
        self.clear()
        self.add(tokens, parents)
        return tuple(path), tuple(kept)


def batches(start: int, stop: int) -> Iterator[range]:
    """The positions `start` to `stop` - 1 in passes of bounded size."""
    for first in range(start, stop, _BATCH):
        yield range(first, min(first + _BATCH, stop))


def run_of_text(positions: range, drafted: int = 0) -> Placement:
    """Rows that follow one another after all that is held; `drafted` as of a segment."""
    return lambda cache: Segment.chain(cache, len(positions), positions.start, drafted=drafted)


def draft_rows(nodes: DraftNodes, known: int, root: int) -> Placement:
    """The draft nodes from `known` on; those before, and the root before them, are the last rows held."""
    drafted = len(nodes) + 1
    if nodes.is_chain:
        return run_of_text(range(root + 1 + known, root + 1 + len(nodes)), drafted)
    return lambda cache: Segment.tree(cache, nodes.parents, known, root + 1, drafted=drafted)
