"""A stock decoder layer in pieces: RMS norm, rotary positions, grouped-query attention, SwiGLU.

No state beyond weights. Module and weight names are those of the authors' checkpoint. Attention is a function of
queries, keys, values and a mask, so that each user decides what is cached.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from moa_shared.drafter.kinds.config import DrafterConfig

TABLE_POSITIONS = 1024  # of the first rotary table; 0.25 MB for a head dimension of 64 in bf16


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 as the target's."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * wide.to(x.dtype)


class TorchRotary:
    """Cosines and sines of rotary positions, from transformers' `rope_parameters` (scaling included)."""

    def __init__(self, head_dim: int, parameters: dict[str, Any], max_positions: int = 8192) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=dict(parameters),
        )
        self._embedding = LlamaRotaryEmbedding(config)
        self._tables: dict[tuple[torch.dtype, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., head_dim] cosine and sine of each position, from a table that grows as needed."""
        key = (dtype, positions.device)
        table = self._tables.get(key)
        needed = int(positions.max()) + 1 if positions.numel() else 1
        if table is None or table[0].shape[0] < needed:
            size = max(TABLE_POSITIONS, 2 * needed)
            with torch.no_grad():
                every = torch.arange(size, device=positions.device)[None]
                like = torch.zeros(1, dtype=dtype, device=positions.device)  # transformers computes where this lies
                cos, sin = self._embedding(like, every)
            table = self._tables[key] = cos[0], sin[0]
        return table[0][positions], table[1][positions]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [..., heads, positions, head_dim] by [..., positions, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Grouped-query attention, [..., rows, heads * head_dim].

    `queries`: [..., heads, rows, head_dim]; keys and values: [..., kv_heads, columns, head_dim]. `mask`: bool,
    [..., rows, columns], where a row sees a column; None: all.
    """
    if queries.dim() == 3:  # the fused kernels want a batch: at least four times faster over 2,000 columns in bf16
        return attend(queries[None], keys[None], values[None], mask)[0]
    # The queries that share a key are put together as rows, so that no key is copied: five times faster for one row.
    groups = queries.shape[-3] // keys.shape[-3]
    rows, head_dim = queries.shape[-2:]
    grouped = queries.reshape(*keys.shape[:-2], groups * rows, head_dim)
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], rows, -1).repeat(*[1] * (mask.dim() - 2), groups, 1)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return out.reshape(*queries.shape).transpose(-3, -2).flatten(-2)


class TorchAttention(nn.Module):
    """The four projections; head split as [..., heads, rows, head_dim]."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)
        self.head_dim = head_dim

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        return self.split(self.q_proj(x))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return self.split(self.k_proj(x))

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return self.split(self.v_proj(x))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(-3, -2)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.inner(x))
        return out

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """The last product's input."""
        out: torch.Tensor = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return out


class DecoderLayer(nn.Module):
    """Norm, attention, residual, norm, MLP, residual."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, inner: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attn = TorchAttention(width, heads, kv_heads, head_dim)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = MLP(width, inner)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The part after attention: output projection and MLP, each with its residual."""
        x = residual + self.self_attn.o_proj(attended)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def finish_mean(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The mean of `finish` over the rows: the MLP's last product, being linear, is done once on the mean."""
        x = residual + self.self_attn.o_proj(attended)
        inner = self.mlp.inner(self.post_attention_layernorm(x)).mean(dim=-2)
        out: torch.Tensor = x.mean(dim=-2) + self.mlp.down_proj(inner)
        return out


class MemoryEncoder(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        width = config.kv_width
        head_dim = width // config.lsa_heads
        if config.lsa:
            self.layer_self_attention = DecoderLayer(
                width, config.lsa_heads, config.lsa_kv_heads, head_dim, config.lsa_mlp, config.rms_norm_eps
            )
            self.Ekv2E = nn.Linear(width, config.hidden_size)
        if config.state_entries:
            self.fc = nn.Linear(len(config.state_entries) * config.hidden_size, config.hidden_size, bias=False)
        self.memory_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        inner = config.ca_kv_heads * config.target_head_dim
        self.memory_keys = nn.Linear(config.hidden_size, inner, bias=False)
        self.memory_values = nn.Linear(config.hidden_size, inner, bias=False)
        self._rotary = TorchRotary(head_dim, config.memory_rope)

    def over_layers(self, kv: torch.Tensor) -> torch.Tensor:
        """Layer self-attention; [..., layers, KV width] in and out. Positions are the layers' numbers."""
        return self.layer_self_attention.finish(kv, self._attended(kv))

    def _attended(self, kv: torch.Tensor) -> torch.Tensor:
        layer = self.layer_self_attention
        attention = layer.self_attn
        normed = layer.input_layernorm(kv)
        cos, sin = self._rotary(torch.arange(kv.shape[-2], device=kv.device), kv.dtype)
        queries = rotate(attention.queries(normed), cos, sin)
        keys = rotate(attention.keys(normed), cos, sin)
        return attend(queries, keys, attention.values(normed), None)

    def forward(self, kv: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.Ekv2E(self.layer_self_attention.finish_mean(kv, self._attended(kv)))
        return out

    def project(self, memory: torch.Tensor) -> torch.Tensor:
        """Wire rows from memory rows (without LSA from the target's last hidden state): [..., memory width],
        un-rotated keys then values.
        """
        normed = self.memory_norm(memory)
        return torch.cat((self.memory_keys(normed), self.memory_values(normed)), dim=-1)

    def encode_states(self, states: torch.Tensor) -> torch.Tensor:
        return self.project(self.fc(states))

    def encode(self, kv: torch.Tensor) -> torch.Tensor:
        return self.project(self.forward(kv))


def load_encoder(
    config: DrafterConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device | None = None
) -> MemoryEncoder:
    """The encoder with a checkpoint's tensors, frozen."""
    names = {name: name for name in tensors if name.startswith(("layer_self_attention.", "Ekv2E.", "fc."))}
    names["memory_norm.weight"] = "cross_attention.input_layernorm.weight"
    names["memory_keys.weight"] = "cross_attention.self_attn.k_proj.weight"
    names["memory_values.weight"] = "cross_attention.self_attn.v_proj.weight"
    encoder = MemoryEncoder(config)
    encoder.load_state_dict({ours: tensors[theirs] for ours, theirs in names.items()})
    return encoder.to(device, dtype).eval().requires_grad_(False)
