"""What the state of every kind of drafter has: nodes, rows and where they go, and memory that some hold."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Segment

from moa_shared.drafter.layers.weights import Rows
from moa_shared.errors import InternalError, ProtocolError
from moa_shared.tree import ROOT, add_depths, path_to, subtree


class BaseState:
    """What each implementation of `ConversationDrafter` has: its committed tokens, and the nodes of its draft.

    `token_ids`: the target's token of each column of the logits; None: the same.
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


Indices = npt.NDArray[np.int32]


class DraftNodes:
    """The nodes: they grow by `add` and are pruned by `advance`."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.trunk = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return self.trunk == len(self.tokens)

    def clear(self) -> None:
        self.tokens, self.parents, self.depths, self.trunk = [], [], [], 0

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Adds nodes; a parent comes before its child (-1: the root)."""
        self.tokens += tokens
        self.parents += parents
        add_depths(self.depths, parents)
        while self.trunk < len(self) and self.parents[self.trunk] == self.trunk - 1:
            self.trunk += 1

    def advance(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Makes the node that these committed tokens lead to the root.

        Gives the nodes that the tokens follow, and former numbers of those below the last token, now numbered 0, 1,
        ...; None where the tokens have left the nodes, of which none is kept then.
        """
        path = self._walk(tokens)
        if len(path) < len(tokens):
            self.clear()
            return path, None
        if not path:
            return (), tuple(range(len(self)))
        kept, parents = subtree(self.parents, path[-1])
        tokens = [self.tokens[node] for node in kept]
        self.clear()
        self.add(tokens, parents)
        return path, tuple(kept)

    def visible(self, first: int) -> tuple[Indices, Indices, Indices]:
        """The nodes that those from `first` on see, their ancestors and themselves, as the kernels take them.

        [rows]: each sees the nodes before that number; [rows + 1]: where its part of the tail begins; the tail: further
        ones that it sees, ascending.
        """
        seen: list[int] = []
        tail: list[int] = []
        starts = [0]
        for node in range(first, len(self)):
            path = path_to(self.parents, node, self.trunk)
            seen.append((self.parents[path[0]] if path else node) + 1)
            tail += path
            starts.append(len(tail))
        return np.array(seen, np.int32), np.array(starts, np.int32), np.array(tail, np.int32)

    def _walk(self, tokens: Sequence[int]) -> tuple[int, ...]:
        path: list[int] = []
        node = ROOT
        for token in tokens:
            child = next(
                (at for at in range(node + 1, len(self)) if self.parents[at] == node and self.tokens[at] == token), None
            )
            if child is None:
                break
            path.append(child)
            node = child
        return tuple(path)


Placement = Callable[[Cache], Segment]  # the rows as they follow what this cache holds

_BATCH = 512  # rows per pass: bounds what a forward holds


def batches(start: int, stop: int) -> Iterator[range]:
    """The positions `start` to `stop` - 1 in passes of bounded size."""
    for first in range(start, stop, _BATCH):
        yield range(first, min(first + _BATCH, stop))


def run_of_text(positions: range) -> Placement:
    """Rows that follow one another after all that is held."""
    return lambda cache: Segment.chain(cache, len(positions), positions.start)


def draft_rows(nodes: DraftNodes, known: int, root: int) -> Placement:
    """The draft nodes from `known` on; those before are the last rows held."""
    if nodes.is_chain:
        return run_of_text(range(root + 1 + known, root + 1 + len(nodes)))
    seen, starts, tail = nodes.visible(known)
    positions = np.array(nodes.depths[known:], np.int32) + np.int32(root)

    def place(cache: Cache) -> Segment:
        before = np.int32(cache.length - known)
        return Segment(cache, cache.length, positions, seen + before, starts, tail + before)

    return place
