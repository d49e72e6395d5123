"""Attention over columns that all rows may share, and over a few more that belong to a group of rows. Pure.

The form of both drafters that read the target's states: each row of EAGLE-3's later steps sees the first step's rows
and its own of the steps before, each block of a drafter the text before it and itself. Each group's own columns are
compared with its rows only, so that no mask of all rows by all columns is needed for them.
"""

from __future__ import annotations

import torch


def attend_with_own(
    queries: torch.Tensor,
    shared: tuple[torch.Tensor, torch.Tensor],
    visible: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Grouped-query attention; a group of rows sees all of its own columns.

    Args:
        queries: [batch, heads, groups, rows, head_dim].
        shared: keys and values, [batch, kv_heads, columns, head_dim].
        visible: [batch, groups, columns] bool, which shared columns the rows of a group see.
        own: keys and values, [batch, kv_heads, groups, own columns, head_dim].

    Returns:
        [batch, groups, rows, heads * head_dim].
    """
    keys, values = shared
    batch, heads, groups, rows, head_dim = queries.shape
    kv_heads, columns = keys.shape[1], keys.shape[2]
    together = heads // kv_heads * rows  # of a group, the heads that share a key's among them
    grouped = queries.reshape(batch, kv_heads, -1, groups, rows, head_dim).transpose(2, 3)
    grouped = grouped.reshape(batch, kv_heads, groups, together, head_dim) * head_dim**-0.5
    far = grouped.flatten(2, 3) @ keys.transpose(-1, -2)
    far = far.view(batch, kv_heads, groups, together, columns).masked_fill(~visible[:, None, :, None], float("-inf"))
    near = grouped @ own[0].transpose(-1, -2)
    chances = torch.cat((far, near), dim=-1).softmax(dim=-1)
    out = (chances[..., :columns].flatten(2, 3) @ values).view(grouped.shape) + chances[..., columns:] @ own[1]
    out = out.view(batch, kv_heads, groups, -1, rows, head_dim).permute(0, 2, 4, 1, 3, 5)
    return out.reshape(batch, groups, rows, heads * head_dim)
