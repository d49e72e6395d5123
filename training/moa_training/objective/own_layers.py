"""The decoder layer of kinds that read states, of the drafter's own sizes, and their attention.

Both see columns that all rows may share, and a few more that belong to a group of rows: each row of EAGLE-3's later
steps sees the first step's rows and its own of the steps before, each block the text before it and itself.
Each group's own columns are compared with its rows only, so that no mask of all rows by all columns is needed for them.
"""

from __future__ import annotations

import torch
from moa_shared.drafter import DrafterConfig
from moa_shared.drafter.layers.torch_layers import DecoderLayer, RMSNorm, TorchAttention
from torch import nn

Columns = tuple[torch.Tensor, torch.Tensor]  # keys and values


class OwnAttention(TorchAttention):
    """Projections whose queries and keys may be normed, head by head, as in Qwen3."""

    def __init__(self, config: DrafterConfig, inputs: int) -> None:
        heads, head_dim = config.heads, config.head_dim
        super().__init__(inputs, heads, config.sa_kv_heads, head_dim)
        self.o_proj = nn.Linear(heads * head_dim, config.hidden_size, bias=False)
        if config.head_norms:
            self.q_norm, self.k_norm = (RMSNorm(head_dim, config.rms_norm_eps) for _ in range(2))
        self._normed = config.head_norms

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        queries = super().queries(x)
        return self.q_norm(queries) if self._normed else queries

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        keys = super().keys(x)
        return self.k_norm(keys) if self._normed else keys


class OwnLayer(DecoderLayer):
    """One of the drafter's layers.

    Args:
        inputs: width of the rows that queries, keys and values are made from; None: the drafter's own.
    """

    def __init__(self, config: DrafterConfig, inputs: int | None = None) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        super().__init__(hidden, config.heads, config.sa_kv_heads, config.head_dim, config.sa_mlp, eps)
        self.self_attn = OwnAttention(config, inputs or hidden)


def attend_with_own(queries: torch.Tensor, shared: Columns, visible: torch.Tensor, own: Columns) -> torch.Tensor:
    """Grouped-query attention; a group of rows sees all of its own columns.

    Args:
        queries: [batch, heads, groups, rows, head_dim].
        shared: [batch, kv_heads, columns, head_dim].
        visible: [batch, groups, columns] bool, which shared columns the rows of a group see.
        own: [batch, kv_heads, groups, own columns, head_dim].

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
