"""The draft tree, whole and as it is streamed: guesses that share prefixes, verified in one forward of the target.

Pure. Nodes are numbered so that a parent comes before its children; -1 is the root, the newest committed token, which
is no node itself. A chain is the tree in which each node's parent is the one before. Some functions take the numbers
from `first` on, of a tree whose older nodes are not at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from operator import eq

import numpy as np
import numpy.typing as npt

from moa_shared.errors import TokenRangeError, TreeError

ROOT = -1


def check_parents(parents: Iterable[int], first: int = 0) -> None:
    """Checks that each parent is an earlier node or the root; `first`: number of the first of these nodes."""
    for node, parent in enumerate(parents, first):
        if not ROOT <= parent < node:
            raise TreeError(f"Node {node} of a draft tree has parent {parent}, expected -1 to {node - 1}.")


def is_chain(parents: Iterable[int], first: int = 0) -> bool:
    """Whether each node, numbered from `first` on, follows the one before it."""
    return all(map(eq, parents, count(first - 1)))


def add_depths(depths: list[int], parents: Iterable[int]) -> None:
    """Appends the depths of new nodes to those before them; the root's children have depth 1."""
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)


def path_to(parents: Sequence[int], node: int, first: int = 0) -> list[int]:
    """Nodes from the root's child down to `node` (none for the root); only those from number `first` on."""
    path: list[int] = []
    while node >= first:
        path.append(node)
        node = parents[node]
    path.reverse()
    return path


def subtree(parents: Sequence[int], root: int, first: int = 0, most: int | None = None) -> tuple[list[int], list[int]]:
    """The nodes below `root`, and their parents, renumbered from 0.

    `parents`: of the nodes from number `first` on. `most`: nodes to take, the oldest first; None: all.
    """
    number = {root: ROOT}
    nodes: list[int] = []
    moved: list[int] = []
    for node in range(max(root + 1, first), first + len(parents)):
        if most is not None and len(nodes) >= most:
            break
        parent = number.get(parents[node - first])
        if parent is not None:
            number[node] = len(nodes)
            nodes.append(node)
            moved.append(parent)
    return nodes, moved


@dataclass(frozen=True)
class DraftTree:
    tokens: tuple[int, ...]  # token id of each node
    parents: tuple[int, ...]  # number of each node's parent, smaller than its own; -1 for children of the root

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise TreeError(f"A draft tree has {len(self.tokens)} tokens but {len(self.parents)} parents.")
        check_parents(self.parents)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return is_chain(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths: list[int] = []
        add_depths(depths, self.parents)
        return tuple(depths)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*paths[parent], token) if parent != ROOT else (token,))
        return tuple(paths)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Children of each node that has any, and of the root (-1), in order of their numbers."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in children.items()}

    def with_path(self, tokens: Sequence[int]) -> DraftTree:
        """The tree with these tokens as a path from the root; nodes that it lacks are added at its end."""
        added, parents, node = [*self.tokens], [*self.parents], ROOT
        for token in tokens:
            child = self.child_with(node, token)
            if child is None:
                child = len(added)
                added.append(token)
                parents.append(node)
            node = child
        return self if len(added) == len(self) else DraftTree(tuple(added), tuple(parents))

    def path_to(self, node: int) -> tuple[int, ...]:
        return tuple(path_to(self.parents, node))

    def child_with(self, node: int, token: int) -> int | None:
        """The first child of `node` (or of the root, -1) that holds `token`."""
        return next((child for child in self.children.get(node, ()) if self.tokens[child] == token), None)

    def pick(self, nodes: Iterable[int]) -> DraftTree:
        """Some of its nodes, renumbered from 0; the parent of each must be among them or the root."""
        chosen = sorted(nodes)
        number = {ROOT: ROOT} | {node: index for index, node in enumerate(chosen)}
        parents = tuple(number[self.parents[node]] for node in chosen)
        return DraftTree(tuple(self.tokens[node] for node in chosen), parents)


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Raises TokenRangeError for the first token outside 0 to `vocab_size` - 1."""
    if len(tokens) <= 32 and all(0 <= token < vocab_size for token in tokens):  # NumPy costs as much as so many
        return
    values = np.asarray(tokens)
    if len(values) == 0 or (values.min() >= 0 and values.max() < vocab_size):
        return
    index = int(np.flatnonzero((values < 0) | (values >= vocab_size))[0])
    raise TokenRangeError(f"Token {index} is {tokens[index]}, outside the vocabulary (0 to {vocab_size - 1}).")


def longest_path(tree: DraftTree, chosen_root: int, chosen: Sequence[int]) -> tuple[list[int], int]:
    """The accepted nodes from the root down, and the bonus token, which the target chose after the last of them.

    With coupled sampling the target's choice after each node (`chosen`) is one token, so verification is a walk along
    equal tokens (Daliri et al., arXiv 2408.07978), for greedy and for sampled text alike.
    """
    path, node, token = list[int](), ROOT, chosen_root
    while (child := tree.child_with(node, token)) is not None:
        path.append(child)
        node, token = child, chosen[child]
    return path, token


class StreamedTree:
    """Nodes `first` to `end` - 1 of a draft: numbered for good, appended at the end, forgotten from the oldest on.

    What it costs depends on what is in flight, not on how much was confirmed before. A node whose parent is forgotten
    can no longer come true: it keeps its number, and has depth 0.
    """

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
        return self._children.get((node, token))

    def since(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens and parents of the nodes from `number` on, which must not be forgotten."""
        at = number - self.first
        return tuple(self._tokens[at:]), tuple(self._parents[at:])

    def below(self, node: int, most: int | None = None) -> tuple[DraftTree, tuple[int, ...]]:
        """The nodes below a node (-1: the root) as a tree of their own, and the number here of each of them."""
        numbers, parents = subtree(self._parents, node, self.first, most)
        tokens = tuple(self._tokens[number - self.first] for number in numbers)
        return DraftTree(tokens, tuple(parents)), tuple(numbers)

    def forget(self, before: int) -> None:
        count = before - self.first
        if count <= 0:
            return
        for index in range(count):
            key = (self._parents[index], self._tokens[index])
            if self._children.get(key) == self.first + index:
                del self._children[key]
        del self._tokens[:count], self._parents[:count], self._depths[:count]
        self.first = before


def ancestor_matrix(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """[nodes, nodes] bool: row sees column, which is itself or one of its ancestors."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            seen[node] |= seen[parent]
    return seen
