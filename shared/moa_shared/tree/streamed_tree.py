"""A draft tree as it is streamed: nodes are numbered for good, appended at the end and forgotten from the oldest on.

Pure. Both ends hold the draft in flight as one, so that what it costs depends on what is in flight and not on how much
of it was confirmed before. A node whose parent is forgotten hangs below nothing that can still come true: it keeps its
number, and has depth 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.tree.arithmetic import ROOT, subtree
from moa_shared.tree.draft_tree import DraftTree


class StreamedTree:
    """Nodes `first` to `end` - 1 of a draft."""

    def __init__(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> None:
        self.first = 0
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}  # (parent, token): the first such child
        for token, parent in zip(tokens, parents, strict=True):
            self.append(token, parent)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def end(self) -> int:
        return self.first + len(self._tokens)

    def append(self, token: int, parent: int) -> None:
        """Adds a node; `parent` is the number of an earlier one, or -1 for the root."""
        number = self.end
        self._tokens.append(token)
        self._parents.append(parent)
        above = 0 if parent == ROOT else self.depth(parent)
        self._depths.append(above + 1 if above or (parent == ROOT and not self.first) else 0)
        self._children.setdefault((parent, token), number)

    def depth(self, node: int) -> int:
        """Depth of a node, 1 below the root; 0 for what is forgotten or hangs below it."""
        return self._depths[node - self.first] if node >= self.first else 0

    def child_with(self, node: int, token: int) -> int | None:
        """The first child of a node (-1: the root) that holds `token`."""
        return self._children.get((node, token))

    def since(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens and parents of the nodes from `number` on, which must not be forgotten."""
        at = number - self.first
        return tuple(self._tokens[at:]), tuple(self._parents[at:])

    def below(self, node: int, most: int | None = None) -> tuple[DraftTree, tuple[int, ...]]:
        """The nodes below a node (-1: the root), as a tree of their own.

        Returns:
            The tree, and the number here of each of its nodes.
        """
        numbers, parents = subtree(self._parents, node, self.first, most)
        tokens = tuple(self._tokens[number - self.first] for number in numbers)
        return DraftTree(tokens, tuple(parents)), tuple(numbers)

    def forget(self, before: int) -> None:
        """Forgets the nodes with numbers below `before`."""
        count = before - self.first
        if count <= 0:
            return
        for index in range(count):
            key = (self._parents[index], self._tokens[index])
            if self._children.get(key) == self.first + index:
                del self._children[key]
        del self._tokens[:count], self._parents[:count], self._depths[:count]
        self.first = before
