"""Decoder layers as checkpoints hold them: the shapes of their tensors, and frozen layers made of these. No state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from moa_shared.drafter.config import DrafterConfig
from moa_shared.drafter.layers import DecoderLayer


def layer_shapes(name: str, model: int, queries: int, keys: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors.

    Args:
        name: prefix in the checkpoint.
        model, queries, keys, inner: widths of its rows, of all query heads, of all key heads, and of its MLP.
    """
    return {
        f"{name}.self_attn.q_proj.weight": (queries, model),
        f"{name}.self_attn.k_proj.weight": (keys, model),
        f"{name}.self_attn.v_proj.weight": (keys, model),
        f"{name}.self_attn.o_proj.weight": (model, queries),
        f"{name}.mlp.gate_proj.weight": (inner, model),
        f"{name}.mlp.up_proj.weight": (inner, model),
        f"{name}.mlp.down_proj.weight": (model, inner),
        f"{name}.input_layernorm.weight": (model,),
        f"{name}.post_attention_layernorm.weight": (model,),
    }


def load_layer(config: DrafterConfig, tensors: Mapping[str, torch.Tensor], name: str) -> DecoderLayer:
    """The layer with that prefix, without a copy; only cross-attention has sizes of its own."""
    kv_heads, inner = (
        (config.ca_kv_heads, config.ca_mlp) if name == "cross_attention" else (config.sa_kv_heads, config.sa_mlp)
    )
    with torch.device("meta"):
        layer = DecoderLayer(
            config.hidden_size, config.target_heads, kv_heads, config.target_head_dim, inner, config.rms_norm_eps
        )
    owned = {key[len(name) + 1 :]: tensor for key, tensor in tensors.items() if key.startswith(name + ".")}
    layer.load_state_dict(owned, assign=True)
    return layer


def frozen_linear(weight: torch.Tensor) -> nn.Linear:
    """A frozen linear layer over a weight, without a copy where it is contiguous."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    return linear
