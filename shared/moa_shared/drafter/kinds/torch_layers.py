"""What of a drafter torch computes on a server: the memory of Mixture of Attentions, on a GPU."""

from collections.abc import Mapping
from typing import Any

import torch
from moa_kernels import Rotary
from torch.nn import functional as F

from moa_shared.drafter.kinds.config import DrafterConfig


class TorchRotary:
    """Cosines and sines of rotary positions, by transformers' `rope_parameters` (scaling included)."""

    def __init__(self, head_dim: int, parameters: Mapping[str, Any]) -> None:
        self._rotary = Rotary(head_dim, parameters)
        self._tables: dict[tuple[torch.dtype, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., head_dim] cosine and sine of each position, from a table that grows as needed."""
        key, needed = (dtype, positions.device), int(positions.max()) + 1 if positions.numel() else 1
        if key not in self._tables or len(self._tables[key][0]) < needed:
            halves = (torch.from_numpy(each).to(positions.device, dtype) for each in self._rotary.tables(needed))
            cos, sin = (torch.cat((half, half), dim=-1) for half in halves)
            self._tables[key] = cos, sin
        cos, sin = self._tables[key]
        return cos[positions], sin[positions]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [..., heads, positions, head_dim] by [..., positions, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def mean_over_layers(
    own: Mapping[str, torch.Tensor], kv: torch.Tensor, rotary: TorchRotary, head_dim: int, eps: float
) -> torch.Tensor:
    """The mean over layers of layer self-attention, [tokens, KV width] of [tokens, layers, KV width].

    `own`: the layer's tensors by the checkpoint's names; positions are the layers' numbers. This is the most expensive
    part of training: norms keep no float32 copies, attention over so few layers is small batched products, and the mean
    is taken before the last projection.
    """
    tokens, layers, width = kv.shape

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (width,), own[f"{name}.weight"], eps)

    def heads(name: str) -> torch.Tensor:  # [tokens, heads, layers, head_dim]
        return F.linear(rows, own[f"self_attn.{name}_proj.weight"]).view(tokens, layers, -1, head_dim).transpose(1, 2)

    rows = normed(kv, "input_layernorm")
    turn = rotary(torch.arange(layers, device=kv.device), kv.dtype)
    queries, keys = rotate(heads("q"), *turn), rotate(heads("k"), *turn)
    grouped = queries.reshape(tokens * keys.shape[1], -1, head_dim) * head_dim**-0.5
    scores = torch.bmm(grouped, keys.flatten(0, 1).transpose(1, 2))
    mixed = torch.bmm(scores.softmax(-1), heads("v").flatten(0, 1)).view(*queries.shape)
    x = kv + F.linear(mixed.transpose(1, 2).flatten(2), own["self_attn.o_proj.weight"])
    rows = normed(x, "post_attention_layernorm")
    gate, up = (F.linear(rows, own[f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return x.mean(1) + F.linear((F.silu(gate) * up).mean(1), own["mlp.down_proj.weight"])


class MemoryEncoder:
    """As `KernelEncoder`, with a checkpoint's tensors, frozen."""

    def __init__(
        self, config: DrafterConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: Any = None
    ) -> None:
        read = [name for name in tensors if name.startswith(config.traits.server_tensors)]
        own = {name: tensors[name].to(device, dtype) for name in read}
        self._own, self._config = own, config
        names = (f"cross_attention.self_attn.{which}_proj.weight" for which in "kv")
        self._keys_values = torch.cat([own[name] for name in names])
        self._dim, start = config.kv_width // config.lsa_heads, "layer_self_attention."
        self._rotary = TorchRotary(self._dim, config.memory_rope)
        self._layer = {name.removeprefix(start): each for name, each in own.items() if name.startswith(start)}

    def memory(self, read: torch.Tensor) -> torch.Tensor:
        if self._config.lsa:
            rows = mean_over_layers(self._layer, read, self._rotary, self._dim, self._config.rms_norm_eps)
            return F.linear(rows, self._own["Ekv2E.weight"], self._own["Ekv2E.bias"])
        return F.linear(read, self._own["fc.weight"]) if self._config.state_entries else read

    def encode(self, read: torch.Tensor) -> torch.Tensor:
        weight = self._own["cross_attention.input_layernorm.weight"]
        return F.linear(
            F.rms_norm(self.memory(read), weight.shape, weight, self._config.rms_norm_eps), self._keys_values
        )
