"""The nodes that a drafter holds below the newest committed token, and where the rows of a pass go and what they see.

Defined once for all caches that rows enter: self-attention and the reused layers hold the same draft after different
numbers of rows. Pure bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Segment

from moa_shared.tree import ROOT, add_depths, path_to, subtree

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

        Returns:
            numbers of the nodes that the tokens follow, as far as they do; and former numbers of those below the last
            token, now numbered 0, 1, ..., None where the tokens have left the nodes, of which none is kept then.
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

        Returns:
            seen, [rows]: each sees the nodes before that number; where its part of the tail begins, [rows + 1]; tail:
            the further ones that it sees, ascending.
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
