"""A decoder layer as a draft step runs it: fused products, rotary tables, grouped heads without copies.

Built from our own `DecoderLayer` or from transformers' Llama, Qwen2 and Qwen3 layers; computes the same. No state
beyond weights: keys and values are the caller's. Rows are [rows, hidden size], without a batch dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from moa_shared.drafter.layers import Rotary
from moa_shared.drafter.linear import compute_dtype, make_linear
from moa_shared.drafter.row_buffer import KeyValues

Angles = tuple[torch.Tensor, torch.Tensor]  # [rows, 1, head_dim]: cosines, and sines with the first half negated


class Norm:
    """Root-mean-square norm over a weight, as the target's.

    Args:
        module: with `weight` and `eps` or `variance_epsilon`.
    """

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        self._weight: torch.Tensor = module.weight.detach().to(dtype)
        self._eps = float(module.eps if hasattr(module, "eps") else module.variance_epsilon)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype is torch.float32 else x.float()
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scaled: torch.Tensor = wide * (size * size).div_(x.shape[-1]).add_(self._eps).rsqrt_()
        return scaled.to(x.dtype).mul_(self._weight)


class Angler:
    """Rotary angles of positions."""

    def __init__(self, rotary: Rotary, dtype: torch.dtype) -> None:
        self._rotary = rotary
        self._dtype = dtype
        self._cos = self._sin = torch.empty(0)

    def __call__(self, positions: range | torch.Tensor) -> Angles:
        most = positions.stop if isinstance(positions, range) else int(positions.max()) + 1
        if most > len(self._cos):
            cos, sin = self._rotary(torch.arange(max(1024, 2 * most)), self._dtype)
            half = sin.shape[-1] // 2
            self._cos = cos[:, None].contiguous()
            self._sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)[:, None].contiguous()
        if isinstance(positions, range):
            return self._cos[positions.start : positions.stop], self._sin[positions.start : positions.stop]
        return self._cos[positions], self._sin[positions]


def rotate_rows(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Rotates [rows, heads, head_dim]."""
    cos, sin = angles
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Visibility:
    """Which cached rows the newest rows see: all but, among the last `block.shape[1]` of them, those not in `block`.

    Args:
        block: [rows, last columns] bool; None: everything is seen.
    """

    def __init__(self, block: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._block = None if block is None else torch.zeros(block.shape, dtype=dtype).masked_fill_(~block, -torch.inf)

    @classmethod
    def of_run(cls, rows: int, dtype: torch.dtype) -> Visibility:
        """The newest rows are a run of text: each sees all before it."""
        return cls(torch.ones(rows, rows, dtype=torch.bool).tril() if rows > 1 else None, dtype)

    def mask(self, groups: int, columns: int) -> torch.Tensor | None:
        """[groups * rows, columns], to add to scores."""
        if self._block is None:
            return None
        rows, last = self._block.shape
        mask = self._block.new_zeros(groups, rows, columns)
        mask[:, :, columns - last :] = self._block
        return mask.view(groups * rows, columns)


class InferenceLayer:
    """One layer.

    Args:
        layer: the modules whose weights it takes.
        heads: query heads.
        dtype: of the weights: float32, bfloat16 or int8.
        reads_memory: keys and values come from elsewhere, already projected.
    """

    def __init__(
        self, layer: Any, heads: int, head_dim: int, dtype: torch.dtype, *, reads_memory: bool = False
    ) -> None:
        attention, mlp, compute = layer.self_attn, layer.mlp, compute_dtype(dtype)
        own = [] if reads_memory else [attention.k_proj, attention.v_proj]
        self.heads, self.head_dim = heads, head_dim
        self.kv_heads = int(attention.k_proj.weight.shape[0]) // head_dim
        self._in = make_linear([attention.q_proj, *own], dtype)
        self._out = make_linear([attention.o_proj], dtype)
        self._gate_up = make_linear([mlp.gate_proj, mlp.up_proj], dtype)
        self._down = make_linear([mlp.down_proj], dtype)
        self._inner = int(mlp.gate_proj.weight.shape[0])
        self._before_attention = Norm(layer.input_layernorm, compute)
        self._before_mlp = Norm(layer.post_attention_layernorm, compute)
        self._query_norm = Norm(attention.q_norm, compute) if hasattr(attention, "q_norm") else None
        self._key_norm = Norm(attention.k_norm, compute) if hasattr(attention, "k_norm") else None

    def project(self, x: torch.Tensor, angles: Angles) -> tuple[torch.Tensor, KeyValues]:
        """Rotated queries [rows, heads, head_dim], and keys and values as a `RowBuffer` takes them."""
        rows, heads, turned = x.shape[0], self.heads, self.heads + self.kv_heads
        split = self._in(self._before_attention(x)).view(rows, -1, self.head_dim)
        if self._query_norm is not None and self._key_norm is not None:
            queries, keys = self._query_norm(split[:, :heads]), self._key_norm(split[:, heads:turned])
            both = rotate_rows(torch.cat((queries, keys), dim=1), angles)
        else:
            both = rotate_rows(split[:, :turned], angles)
        return both[:, :heads], (both[:, heads:].transpose(0, 1), split[:, turned:].transpose(0, 1))

    def queries(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Rotated queries of a layer that reads memory."""
        return rotate_rows(self._in(self._before_attention(x)).view(x.shape[0], -1, self.head_dim), angles)

    def attend(
        self, x: torch.Tensor, queries: torch.Tensor, keys_values: KeyValues, visible: Visibility
    ) -> torch.Tensor:
        """The layer's output rows, [rows, hidden size], of its input `x`."""
        rows, kv_heads = x.shape[0], keys_values[0].shape[0]
        groups = self.heads // kv_heads
        # Queries that share a key stand together as rows, so that no key is copied.
        grouped = queries.reshape(rows, kv_heads, groups, self.head_dim)
        if rows > 1:
            grouped = grouped.permute(1, 2, 0, 3).reshape(1, kv_heads, groups * rows, self.head_dim)
        mask = visible.mask(groups, keys_values[0].shape[1])
        out = F.scaled_dot_product_attention(grouped, keys_values[0][None], keys_values[1][None], attn_mask=mask)
        if rows > 1:
            out = out.view(kv_heads, groups, rows, self.head_dim).permute(2, 0, 1, 3)
        return self.finish(x + self._out(out.reshape(rows, -1)))

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP with its residual."""
        both = self._gate_up(self._before_mlp(x))
        return x + self._down(F.silu(both[:, : self._inner]).mul_(both[:, self._inner :]))
