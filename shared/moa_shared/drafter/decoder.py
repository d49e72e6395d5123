"""The client's half: frozen embeddings, self-attention, cross-attention over the memory, reused target layers, head.

State: weights only; what one conversation has seen lies in `DraftState`. All rows of a call are nodes of one draft (or
a run of committed tokens), [rows, hidden size], without a batch dimension: a device drafts for one conversation.
"""

from __future__ import annotations

import torch
from torch import nn

from moa_shared.drafter.config import DrafterConfig
from moa_shared.drafter.layers import DecoderLayer, RMSNorm, Rotary, attend, rotate
from moa_shared.drafter.row_buffer import KeyValues


class DraftDecoder(nn.Module):
    """Computes drafts.

    Args:
        config: of the drafter.
        embeddings: the target's, [vocab, hidden size]; frozen, not in the checkpoint.
        head: the target's output weights, [vocab, hidden size] (the embeddings themselves where tied).
        reused: the target's last N decoder layers (transformers modules), in order.
        final_norm: the target's (needed for N > 0).
        draft_ids: the target's token id of each draft vocabulary entry, [draft vocab]; None: all.
    """

    def __init__(
        self,
        config: DrafterConfig,
        embeddings: torch.Tensor,
        head: torch.Tensor,
        reused: list[nn.Module] | None = None,
        final_norm: nn.Module | None = None,
        draft_ids: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        heads, head_dim, eps = config.target_heads, config.target_head_dim, config.rms_norm_eps
        self.self_attention = DecoderLayer(config.hidden_size, heads, config.sa_kv_heads, head_dim, config.sa_mlp, eps)
        self.cross_attention = DecoderLayer(config.hidden_size, heads, config.ca_kv_heads, head_dim, config.ca_mlp, eps)
        self.output_norm = RMSNorm(config.hidden_size, eps) if config.output_norm else None
        self.reused = nn.ModuleList(reused or [])
        self.final_norm = final_norm
        self.rotary = Rotary(head_dim, config.rope_parameters)
        self.memory_rotary = Rotary(head_dim, config.memory_rope) if config.unscaled_memory_rope else self.rotary
        self.draft_ids = draft_ids
        self.embeddings = embeddings
        self.head = _linear(head if draft_ids is None else head[draft_ids])

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[rows] token ids to [rows, hidden size]."""
        return self.embeddings[tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden size] (post-norm feature) to [rows, draft vocab]."""
        out: torch.Tensor = self.head(hidden)
        return out

    def self_keys_values(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> KeyValues:
        layer = self.self_attention
        normed = layer.input_layernorm(x)
        return rotate(layer.self_attn.keys(normed), cos, sin), layer.self_attn.values(normed)

    def self_attend(
        self, x: torch.Tensor, keys_values: KeyValues, mask: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        layer = self.self_attention
        queries = rotate(layer.self_attn.queries(layer.input_layernorm(x)), cos, sin)
        return layer.finish(x, attend(queries, *keys_values, mask))

    def memory_keys_values(self, rows: torch.Tensor, positions: torch.Tensor) -> KeyValues:
        """Wire rows [rows, memory width] to rotated keys and values."""
        keys, values = rows.chunk(2, dim=-1)
        split = self.cross_attention.self_attn.split
        return rotate(split(keys), *self.memory_rotary(positions, rows.dtype)), split(values)

    def cross_attend(self, x: torch.Tensor, memory: KeyValues, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Cross-attention; without any memory row only the MLP acts."""
        layer = self.cross_attention
        if memory[0].shape[-2] == 0:
            alone: torch.Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
            return alone
        queries = rotate(layer.self_attn.queries(layer.input_layernorm(x)), cos, sin)
        return layer.finish(x, attend(queries, *memory, None))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The cross-attention's output as the feature that the head takes (N = 0)."""
        if self.output_norm is None:
            return x
        out: torch.Tensor = self.output_norm(x)
        return out


def _linear(weight: torch.Tensor) -> nn.Linear:
    """A frozen linear layer over a weight, without a copy where it is contiguous."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    return linear
