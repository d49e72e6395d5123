"""The decoder layer of kinds that read states: of the drafter's own sizes, with norms of heads where it has them."""

from __future__ import annotations

import torch
from moa_shared.drafter import DrafterConfig
from moa_shared.drafter.layers.torch_layers import DecoderLayer, RMSNorm, TorchAttention
from torch import nn


class OwnAttention(TorchAttention):
    """Projections whose queries and keys may be normed, head by head, as in Qwen3.

    Args:
        inputs: width of the rows that queries, keys and values are made from.
    """

    def __init__(self, config: DrafterConfig, inputs: int) -> None:
        heads, kv_heads, head_dim = config.heads, config.sa_kv_heads, config.head_dim
        super().__init__(inputs, heads, kv_heads, head_dim)
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
