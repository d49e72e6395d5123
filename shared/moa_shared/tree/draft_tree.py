"""The draft tree: guesses that share prefixes, verified in one forward of the target.

Pure: no I/O. Nodes are numbered so that a parent comes before its children; -1 is the root, the newest committed
token, which is not part of the tree. A chain is the tree in which each node's parent is the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from moa_shared.errors import TokenRangeError, TreeError
from moa_shared.tree import arithmetic
from moa_shared.tree.arithmetic import ROOT

FEW = 32  # tokens: NumPy costs as much as looking at so many one by one


@dataclass(frozen=True)
class DraftTree:
    """A tree of draft tokens."""

    tokens: tuple[int, ...]  # token id of each node
    parents: tuple[int, ...]  # number of each node's parent, smaller than its own; -1 for children of the root

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise TreeError(f"A draft tree has {len(self.tokens)} tokens but {len(self.parents)} parents.")
        arithmetic.check_parents(self.parents)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """The tree in which each token follows the one before."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return arithmetic.is_chain(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; the root's children have depth 1."""
        depths: list[int] = []
        arithmetic.add_depths(depths, self.parents)
        return tuple(depths)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The tokens from the root's child down to each node."""
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

    def ancestor_matrix(self) -> npt.NDArray[np.bool_]:
        return arithmetic.ancestor_matrix(self.parents)

    def path_to(self, node: int) -> tuple[int, ...]:
        return tuple(arithmetic.path_to(self.parents, node))

    def child_with(self, node: int, token: int) -> int | None:
        """The first child of `node` (or of the root, -1) that holds `token`."""
        return next((child for child in self.children.get(node, ()) if self.tokens[child] == token), None)

    def subtree(self, node: int) -> DraftTree:
        """The tree below `node`, which becomes the root."""
        if node == ROOT:
            return self
        nodes, parents = arithmetic.subtree(self.parents, node)
        return DraftTree(tuple(self.tokens[at] for at in nodes), tuple(parents))

    def pick(self, nodes: Iterable[int]) -> DraftTree:
        chosen = sorted(nodes)
        return DraftTree(tuple(self.tokens[node] for node in chosen), tuple(arithmetic.pick(self.parents, chosen)))

    def prefix(self, nodes: int) -> DraftTree:
        """The tree of the first `nodes` nodes (a prefix of the numbering is always a tree)."""
        return self if nodes >= len(self) else DraftTree(self.tokens[:nodes], self.parents[:nodes])

    def validate(self, vocab_size: int, max_nodes: int) -> None:
        """Checks what came over the wire."""
        if len(self) > max_nodes:
            raise TreeError(
                f"A draft tree has {len(self)} nodes, more than the {max_nodes} allowed.", hint="Send smaller drafts."
            )
        check_tokens(self.tokens, vocab_size)


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Raises TokenRangeError for the first token outside 0 to `vocab_size` - 1."""
    if len(tokens) <= FEW and all(0 <= token < vocab_size for token in tokens):
        return
    values = np.asarray(tokens)
    if len(values) == 0 or (values.min() >= 0 and values.max() < vocab_size):
        return
    index = int(np.flatnonzero((values < 0) | (values >= vocab_size))[0])
    raise TokenRangeError(f"Token {index} is {tokens[index]}, outside the vocabulary (0 to {vocab_size - 1}).")


def longest_path(tree: DraftTree, chosen_root: int, chosen: Sequence[int]) -> tuple[list[int], int]:
    """Walks the tree along the tokens that the target chose.

    With coupled sampling the target's choice after each node is one token, so verification is a walk along equal
    tokens (Daliri et al., arXiv 2408.07978), for greedy and for sampled text alike.

    Args:
        chosen_root: the target's choice after the root.
        chosen: the target's choice after each node, [nodes].

    Returns:
        The accepted nodes from the root down, and the bonus token, which the target chose after the last of them.
    """
    path: list[int] = []
    if not tree.tokens:
        return path, chosen_root
    node, token = ROOT, chosen_root
    while (child := tree.child_with(node, token)) is not None:
        path.append(child)
        node, token = child, chosen[child]
    return path, token
