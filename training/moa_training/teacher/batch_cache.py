"""Keys and values of many answers at once, one slot each, in fixed memory.

Stands in for transformers' cache: attention modules write through `update`. Invariant: row `slot` holds positions
0..lengths[slot]; what comes after is never seen, so a slot is refilled by overwriting it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from moa_shared.errors import InternalError
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

ATTENTION = "moa_batched"
_STEP = 32  # columns read grow by so many, so that shapes repeat and few are new to the kernels


class BatchCache:
    """Room for `slots` answers of `capacity` tokens."""

    def __init__(self, config: Any, slots: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, config.num_hidden_layers, slots, config.num_key_value_heads, capacity, head_dim)
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)
        self._slots = torch.arange(slots, device=device)
        self._columns = 0
        self._prefilled: torch.Tensor | None = None

    def forget(self, slots: Sequence[int]) -> None:
        """Empties slots."""
        if slots:
            self.lengths[torch.tensor(slots, device=self.lengths.device)] = 0

    def begin_step(self) -> int:
        """Before one token of every slot: how many columns are read, by which the step's shapes are known."""
        needed = int(self.lengths.max()) + 1
        if needed > self.capacity:
            raise InternalError(f"An answer of {needed} tokens does not fit into {self.capacity}.")
        self._columns = min(self.capacity, -(-needed // _STEP) * _STEP)
        self._prefilled = None
        return self._columns

    def step_inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of the slots' tokens [slots, 1], and who sees what [slots, 1, 1, columns]."""
        columns = torch.arange(self._columns, device=self.lengths.device)
        return self.lengths[:, None], (columns[None] <= self.lengths[:, None])[:, None, None]

    def end_step(self) -> None:
        self.lengths += 1

    def begin_prefill(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Before the prompts of some slots, which are forgotten first."""
        self._prefilled = torch.tensor(slots, device=self.lengths.device)
        self.lengths[self._prefilled] = torch.tensor(lengths, device=self.lengths.device)

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
        """Writes [rows, kv heads, tokens, head_dim] and gives what attention reads."""
        if self._prefilled is not None:
            self._buffer[0, layer, self._prefilled, :, : keys.shape[2]] = keys
            self._buffer[1, layer, self._prefilled, :, : keys.shape[2]] = values
            return keys, values
        self._buffer[0, layer, self._slots, :, self.lengths] = keys[:, :, 0]
        self._buffer[1, layer, self._slots, :, self.lengths] = values[:, :, 0]
        held = self._buffer[:, layer, :, :, : self._columns]
        return held[0], held[1]

    def get_seq_length(self, *_: Any) -> int:
        """Transformers asks for it; positions are given, so the answer does not matter."""
        return 0


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped heads without copies of keys: the heads of a group are the queries of one product."""
    rows, heads, length, dim = query.shape
    if length > 1:
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            scale=scaling,
            enable_gqa=True,
            is_causal=attention_mask is None,
        )
        return out.transpose(1, 2), None
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], dim)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, dim), None


def use_batched_attention(model: Any) -> None:
    """Makes a transformers model read this cache's layout."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.config._attn_implementation = ATTENTION
