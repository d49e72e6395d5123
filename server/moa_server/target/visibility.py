"""Who sees whom among the tokens of one forward: depths, ancestors, and the attention mask where one is needed.

A tail of n tokens stands behind a prefix that all of them see; token i also sees its ancestors and itself. The parent
-1 is the last token of the prefix. Invariant: parents stand before their children.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from moa_shared.errors import TreeError


def tail_depths(parents: Sequence[int]) -> list[int]:
    """Depth of each tail token (roots 0).

    Raises:
        TreeError: a parent that does not stand before its child.
    """
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise TreeError(f"The parent of node {node} is {parent}, expected a number from -1 to {node - 1}.")
        depths.append(0 if parent == -1 else depths[parent] + 1)
    return depths


def attention_mask(
    prefix: int, parents: Sequence[int] | None, count: int, dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor | None:
    """The additive mask of a tail, or None where attention needs none.

    None is given for a single token (it sees everything) and for a chain without prefix (plainly causal).

    Args:
        prefix: rows before the tail.
        parents: of the tail's tokens; None for a chain.
        count: tokens in the tail.

    Returns:
        [1, 1, count, prefix + count]: 0 where the row sees the column, -inf where not.
    """
    if count == 1 or (parents is None and prefix == 0):
        return None
    mask = torch.zeros(count, prefix + count, dtype=dtype, device=device)
    tail = mask[:, prefix:]
    if parents is None:
        tail.fill_(float("-inf")).triu_(1)
    else:
        tail.masked_fill_(~_ancestors(parents).to(mask.device), float("-inf"))
    return mask[None, None]


def _ancestors(parents: Sequence[int]) -> torch.Tensor:
    """[n, n] bool: row i marks its ancestors and itself."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen
