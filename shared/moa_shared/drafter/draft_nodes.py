"""The nodes that a drafter holds below the newest committed token, re-rooted as tokens are committed.

Pure bookkeeping for drafters with one cache row per node. State: tokens, parents and depths, numbered as in a
`DraftTree`. Invariant: the first `trunk` nodes are a chain from the root, so a long chain costs no tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_shared.tree.arithmetic import ROOT, add_depths, path_to, subtree


@dataclass(frozen=True, slots=True)
class Advance:
    """What committed tokens leave of a draft.

    Args:
        path: numbers of the nodes that the tokens follow, as far as they do.
        kept: former numbers of the nodes below the last token, now numbered 0, 1, ...; None: the tokens have left
            the nodes, and none is kept.
    """

    path: tuple[int, ...]
    kept: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Visible:
    """Nodes that rows see, as the kernels take them: the nodes 0 to seen - 1, then those of its tail, ascending.

    Args:
        seen: [rows] int32.
        tail_start: [rows + 1] int32, where each row's part of `tail` begins.
    """

    seen: npt.NDArray[np.int32]
    tail_start: npt.NDArray[np.int32]
    tail: npt.NDArray[np.int32]


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

    def advance(self, tokens: Sequence[int]) -> Advance:
        """Makes the node that these committed tokens lead to the root."""
        path = self._walk(tokens)
        if len(path) < len(tokens):
            self.clear()
            return Advance(path, None)
        if not path:
            return Advance((), tuple(range(len(self))))
        kept, parents = subtree(self.parents, path[-1])
        tokens = [self.tokens[node] for node in kept]
        self.clear()
        self.add(tokens, parents)
        return Advance(path, tuple(kept))

    def visible(self, first: int) -> Visible:
        """The nodes that those from `first` on see: their ancestors and themselves."""
        seen: list[int] = []
        tail: list[int] = []
        starts = [0]
        for node in range(first, len(self)):
            path = path_to(self.parents, node, self.trunk)
            seen.append((self.parents[path[0]] if path else node) + 1)
            tail += path
            starts.append(len(tail))
        return Visible(*(np.array(each, np.int32) for each in (seen, starts, tail)))

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
