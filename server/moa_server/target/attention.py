"""Attention over grouped heads without copying keys and values, offered to transformers under a name of our own.

Transformers' own `sdpa` repeats keys and values for each query head when there is a mask, which for the default target
costs as much as the attention itself. On a CPU the kernel reads grouped heads directly, so nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from moa_shared.tree.arithmetic import ancestor_matrix
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "moa_grouped"


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention; no mask with several queries means plainly causal.

    Args:
        query: [batch, heads, queries, head_dim]; `key`, `value`: [batch, kv_heads, rows, head_dim].

    Returns:
        [batch, queries, heads, head_dim], as transformers expects it, and None for the weights.
    """
    if query.device.type != "cpu":
        # CUDA's fast kernels take a mask or grouped heads, not both; transformers chooses between them.
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, None
    causal = attention_mask is None and query.shape[2] > 1
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, is_causal=causal, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2), None


def register() -> None:
    """Make the name known to transformers, with the masks of its own `sdpa`."""
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


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
        tail.masked_fill_(torch.from_numpy(~ancestor_matrix(parents)).to(mask.device), float("-inf"))
    return mask[None, None]
