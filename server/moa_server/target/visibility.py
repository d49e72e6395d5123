"""Who sees whom among the tokens of one forward: their depths. Pure.

A tail of n tokens follows a prefix that all of them see; token i also sees its ancestors and itself. The parent -1 is
the last token of the prefix. Invariant: parents come before their children.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.errors import TreeError


def tail_depths(parents: Sequence[int]) -> list[int]:
    """Depth of each tail token (roots 0).

    Raises:
        TreeError: a parent that does not come before its child.
    """
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise TreeError(f"The parent of node {node} is {parent}, expected a number from -1 to {node - 1}.")
        depths.append(0 if parent == -1 else depths[parent] + 1)
    return depths
