"""What can be computed from the parents of a tree's nodes alone.

Pure. A tree is a sequence of parents, one a node: numbers of earlier nodes, or -1 for the root, which is no node
itself. Some functions take the numbers from `first` on, of a tree whose older nodes are not at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from operator import eq

import numpy as np
import numpy.typing as npt

from moa_shared.errors import TreeError

ROOT = -1


def check_parents(parents: Iterable[int], first: int = 0) -> None:
    """Checks that each parent is an earlier node or the root.

    Args:
        first: number of the first of these nodes.
    """
    for node, parent in enumerate(parents, first):
        if not ROOT <= parent < node:
            raise TreeError(f"Node {node} of a draft tree has parent {parent}, expected -1 to {node - 1}.")


def is_chain(parents: Iterable[int], first: int = 0) -> bool:
    """Whether each node, numbered from `first` on, follows the one before it."""
    return all(map(eq, parents, count(first - 1)))


def add_depths(depths: list[int], parents: Iterable[int]) -> None:
    """Appends the depths of new nodes to those of the nodes before them; the root's children have depth 1."""
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


def ancestor_matrix(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """[nodes, nodes] bool: row sees column, which is itself or one of its ancestors."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            seen[node] |= seen[parent]
    return seen


def below_chain(length: int, parents: Iterable[int]) -> list[int]:
    """Parents of a chain of `length` nodes followed by a tree that hangs below the last of them."""
    return [*range(ROOT, length - 1), *[length + parent for parent in parents]]


def pick(parents: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Parents of some nodes, ascending, renumbered from 0; the parent of each must be among them or the root."""
    number = {ROOT: ROOT} | {node: index for index, node in enumerate(nodes)}
    return [number[parents[node]] for node in nodes]


def subtree(parents: Sequence[int], root: int, first: int = 0, most: int | None = None) -> tuple[list[int], list[int]]:
    """The nodes below `root`, and their parents, renumbered from 0.

    Args:
        parents: of the nodes from number `first` on; older ones are known not to matter.
        root: a node, which becomes the root, or the root itself.
        most: nodes to take, the oldest first; None: all.
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
