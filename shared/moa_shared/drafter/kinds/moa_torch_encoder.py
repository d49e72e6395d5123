"""The server's half: from the target's keys and values of a token to one memory row.

Layer self-attention over the target's layers, mean, `Ekv2E`, then the cross-attention's own norm and key/value
projections (arXiv 2410.03804, section 4). State: weights only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.layers.torch_layers import DecoderLayer, RMSNorm, TorchRotary, attend, rotate
from moa_shared.models.weights.loading import pack_linears


class MemoryEncoder(nn.Module):
    """Encodes newly verified tokens."""

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
    """The encoder with a checkpoint's tensors, frozen, loaded where it runs: packed weights cannot be moved."""
    names = {name: name for name in tensors if name.startswith(("layer_self_attention.", "Ekv2E.", "fc."))}
    names["memory_norm.weight"] = "cross_attention.input_layernorm.weight"
    names["memory_keys.weight"] = "cross_attention.self_attn.k_proj.weight"
    names["memory_values.weight"] = "cross_attention.self_attn.v_proj.weight"
    encoder = MemoryEncoder(config)
    encoder.load_state_dict({ours: tensors[theirs] for ours, theirs in names.items()})
    encoder = encoder.to(device, dtype).eval().requires_grad_(False)
    pack_linears(encoder)
    return encoder
