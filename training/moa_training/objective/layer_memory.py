"""Memory rows for training, fast: what `TrainingDrafter.memory` computes, in fewer and narrower passes.

Layer self-attention runs over every layer of every token and is the most expensive part of training. Here the norm
keeps no float32 copies, attention over so few layers is small batched products, and the mean over layers is taken
before the last projection. Only a share of the tokens carries gradients. No state.
"""

from __future__ import annotations

from typing import Any

import torch
from moa_shared.drafter.layers.torch_layers import RMSNorm, rotate
from torch.nn import functional as F

from moa_training.objective.network import TrainingDrafter


class _FastNorm(torch.autograd.Function):
    """RMS norm with a hand-written gradient; sums in float32, everything else in the input's type."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        scale = (square / x.shape[-1] + eps).rsqrt_().to(x.dtype)
        normed = x * scale
        ctx.save_for_backward(normed, weight, scale)
        out: torch.Tensor = normed * weight
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        (gradient,) = gradients
        normed, weight, scale = ctx.saved_tensors
        product = gradient * normed
        for_weight = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None
        mean = (product @ weight)[..., None] / normed.shape[-1]
        return (gradient * weight - normed * mean) * scale, for_weight, None


def _norm(x: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    out: torch.Tensor = _FastNorm.apply(x, norm.weight, norm.eps)  # type: ignore[no-untyped-call]
    return out


def _rows(drafter: FastDrafter, kv: torch.Tensor) -> torch.Tensor:
    """Memory rows [tokens, hidden] of [tokens, layers, KV width]."""
    config, layer = drafter.config, drafter.layer_self_attention
    tokens, layers, width = kv.shape
    attention, mlp = layer.self_attn, layer.mlp
    normed = _norm(kv, layer.input_layernorm)
    cos, sin = drafter.layer_positions(layers, kv)
    heads, kv_heads, dim = config.lsa_heads, config.lsa_kv_heads, width // config.lsa_heads
    queries = rotate(attention.q_proj(normed).view(tokens, layers, heads, dim).transpose(1, 2), cos, sin)
    keys = rotate(attention.k_proj(normed).view(tokens, layers, kv_heads, dim).transpose(1, 2), cos, sin)
    values = attention.v_proj(normed).view(tokens, layers, kv_heads, dim).transpose(1, 2)
    group = heads // kv_heads
    grouped = queries.reshape(tokens * kv_heads, group * layers, dim) * dim**-0.5
    scores = torch.bmm(grouped, keys.reshape(tokens * kv_heads, layers, dim).transpose(1, 2))
    mixed = torch.bmm(scores.softmax(-1), values.reshape(tokens * kv_heads, layers, dim))
    attended = mixed.view(tokens, heads, layers, dim).transpose(1, 2).reshape(tokens, layers, heads * dim)
    x = kv + attention.o_proj(attended)
    inner = _norm(x, layer.post_attention_layernorm)
    inner = (F.silu(mlp.gate_proj(inner)) * mlp.up_proj(inner)).mean(1)
    out: torch.Tensor = drafter.Ekv2E(x.mean(1) + mlp.down_proj(inner))
    return out


class FastDrafter(TrainingDrafter):
    """`TrainingDrafter` with this module's memory.

    `gradient_share`: share of tokens (evenly spaced, from a random offset) whose memory rows carry gradients; the
    others are computed without, which saves two thirds of their cost. `tokens_before`: tokens of the update's batch
    that other processes have before this one's, so that the spacing goes through all.
    """

    gradient_share: float = 1.0
    tokens_before: int = 0

    def layer_positions(self, layers: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary cosines and sines of the layers' numbers."""
        return self._layer_rotary(torch.arange(layers, device=like.device), like.dtype)

    def memory(self, kv: torch.Tensor) -> torch.Tensor:
        """Memory rows [batch, length, hidden] of [batch, length, layers, KV width]."""
        flat = kv.flatten(0, 1)
        learns = self.training and torch.is_grad_enabled() and self.Ekv2E.weight.requires_grad
        stride = round(1.0 / self.gradient_share) if learns else 1
        if stride <= 1:
            return _rows(self, flat).view(*kv.shape[:2], -1)
        chosen = torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device)
        chosen[(int(torch.randint(stride, (1,))) - self.tokens_before) % stride :: stride] = True
        with torch.no_grad():
            still = _rows(self, flat[~chosen])
        moving = _rows(self, flat[chosen])
        rows = moving.new_empty(flat.shape[0], moving.shape[1])
        rows = rows.index_put((torch.nonzero(~chosen)[:, 0],), still).index_put((torch.nonzero(chosen)[:, 0],), moving)
        return rows.view(*kv.shape[:2], -1)
