"""Mixture of Attentions (arXiv 2410.03804): layer self-attention makes the memory, the target's last layers are reused.

The server's half is computed by the kernels here (layer self-attention is a layer of one stack whose rows are the
target's layers: each token is a session of its own, and every row of it sees all of them), by torch in
`torch_layers`; the device's half is `moa_decoder`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from moa_kernels import F32, Cache, Rotary, Segment, StackShape

from moa_shared.drafter.kinds.config import DrafterConfig, Kind, MakeRows, Published, Shapes
from moa_shared.drafter.kinds.layout import OWN_EMBEDDINGS, check_form, layer_shapes, rope_of, target_sizes
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder, DraftState
from moa_shared.drafter.kinds.weights import Arithmetic, Rows
from moa_shared.models.network.network import Weights, read_layer
from moa_shared.models.network.plan import plan_of

if TYPE_CHECKING:
    import torch

    from moa_shared.drafter.kinds.config import Device, Tensors, TorchRows

# Beginnings of the names of what the server runs; the rest runs on the device.
ENCODER_TENSORS = (
    "layer_self_attention.",
    "Ekv2E.",
    "fc.",  # without layer self-attention
    "cross_attention.input_layernorm.",
    "cross_attention.self_attn.k_proj.",
    "cross_attention.self_attn.v_proj.",
)
_BATCH = 16  # tokens a pass: 480 rows of a target with 30 layers


class KernelEncoder:
    """Encodes newly verified tokens; for one thread at a time."""

    def __init__(self, config: DrafterConfig, own: Weights, weights: str) -> None:
        self.config = config
        width, head_dim = config.kv_width, config.kv_width // config.lsa_heads
        sizes = (config.hidden_size, width, head_dim, config.lsa_mlp) if config.lsa else (config.hidden_size,)
        self.arithmetic = arithmetic = Arithmetic.of(weights, sizes)
        self._norm = own.array("cross_attention.input_layernorm.weight")
        names = (f"cross_attention.self_attn.{which}_proj.weight" for which in "kv")
        self._keys_values = arithmetic.linear([own.array(name) for name in names])
        self._caches: list[Cache] = []
        if config.lsa:
            heads = config.lsa_heads, config.lsa_kv_heads, head_dim
            shape = StackShape(width, config.lsa_mlp, *heads, config.rms_norm_eps)
            layer = read_layer(own, "layer_self_attention", arithmetic.linear)
            self._stack = arithmetic.stack(shape, [layer], Rotary(head_dim, config.memory_rope))
            self._to_hidden = arithmetic.linear([own.array("Ekv2E.weight")], own.array("Ekv2E.bias"))
        if config.state_entries:
            self._to_hidden = arithmetic.linear([own.array("fc.weight")])

    def memory(self, read: Rows) -> Rows:
        """[tokens, hidden size] from keys and values [tokens, layers, KV width] (interleaved by KV head), or states."""
        if self.config.lsa:
            batches = (read[start : start + _BATCH] for start in range(0, len(read), _BATCH))
            return np.concatenate([self._to_hidden(self._mean_over_layers(batch)) for batch in batches])
        return self._to_hidden(read) if self.config.state_entries else read

    def encode(self, read: Rows) -> Rows:
        """Wire rows, un-rotated keys then values."""
        if not len(read):
            return np.empty((0, self.config.memory_width), np.float32)
        return self._keys_values(self.arithmetic.norm(self.memory(read), self._norm, self.config.rms_norm_eps))

    def _mean_over_layers(self, kv: Rows) -> Rows:
        tokens, layers, width = kv.shape
        while len(self._caches) < tokens:
            self._caches.append(self._stack.new_cache(kv=F32))
        numbers = np.arange(layers, dtype=np.int32)
        everything, no_tails = np.full(layers, layers, np.int32), np.zeros(layers + 1, np.int32)
        segments = [Segment(cache, 0, numbers, everything, no_tails, numbers[:0]) for cache in self._caches[:tokens]]
        out, _ = self._stack.run(kv.reshape(tokens * layers, width), segments)
        mean: Rows = out.reshape(tokens, layers, width).mean(axis=1)
        return mean


class _Moa(Kind):
    name = "moa"
    label = "MoA"
    about = "A Mixture of Attentions drafter (arXiv 2410.03804)"
    variants: ClassVar = {"moa": "Mixture of Attentions"}
    takes = frozenset({"reused_layers", "ca", "state_entries"})
    objective = "memory"
    maps_target = True
    shares_memory = True
    is_timed = True
    server_tensors = ENCODER_TENSORS
    decoder, state = DraftDecoder, DraftState

    def fits(self, names: Collection[str]) -> bool:
        return any(name.startswith(("layer_self_attention.", "cross_attention.")) for name in names)

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        heads, stack = of.config.get("num_attention_heads"), plan_of(of.target).shape
        forms = {"no layer self-attention (disable_LSA)": of.config.get("disable_LSA")}
        hidden = shapes["Ekv2E.weight"][0] if "Ekv2E.weight" in shapes else None
        check_form(of, self.label, shapes, hidden, forms, num_attention_heads=heads)
        head_dim, lsa_dim = stack.head_dim, max(1, 2 * stack.kv_heads * stack.head_dim // stack.heads)

        def sizes(part: str, dim: int) -> tuple[int, int]:
            """Key/value heads, and the width of its MLP."""
            return shapes[f"{part}.self_attn.k_proj.weight"][0] // dim, shapes[f"{part}.mlp.up_proj.weight"][0]

        sa_kv_heads, sa_mlp = sizes("self_attention", head_dim)
        ca_kv_heads, ca_mlp = sizes("cross_attention", head_dim)
        lsa_kv_heads, lsa_mlp = sizes("layer_self_attention", lsa_dim)
        rope = rope_of(of.config, rope_of(of.target)["rope_theta"])
        config = DrafterConfig(
            **target_sizes(of.target),
            sa_kv_heads=sa_kv_heads,
            sa_mlp=sa_mlp,
            ca_kv_heads=ca_kv_heads,
            ca_mlp=ca_mlp,
            lsa_heads=stack.heads,
            lsa_kv_heads=lsa_kv_heads,
            lsa_mlp=lsa_mlp,
            rms_norm_eps=float(of.config.get("rms_norm_eps", stack.eps)),
            rope_parameters=rope,
            unscaled_memory_rope=rope["rope_type"] != "default",
            reused_layers=int(of.config.get("target_layer_inference", 0)),
        )
        return config, (OWN_EMBEDDINGS,)

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {
            "state_entries must be in place of layer self-attention": not (config.lsa and config.state_entries),
            "without ca there is no memory to make": config.ca or not (config.lsa or config.state_entries),
        }

    def method(self, config: DrafterConfig) -> str:
        return f"MoA, N = {config.reused_layers}{'' if config.ca else ', no CA'}"

    def layers(self, config: DrafterConfig) -> list[str]:
        return ["self_attention", "cross_attention"]

    def begins_as(self, config: DrafterConfig) -> dict[str, int]:
        return {"self_attention": 0, "cross_attention": config.target_layers - 1 - config.reused_layers}

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden, width, dim = config.hidden_size, config.kv_width, config.target_head_dim
        query, shapes = config.target_heads * dim, Shapes()
        if config.lsa:
            shapes = {"Ekv2E.weight": (hidden, width), "Ekv2E.bias": (hidden,)}
        if config.state_entries:
            shapes = {"fc.weight": (hidden, len(config.state_entries) * hidden)}
        shapes |= layer_shapes("self_attention", hidden, query, config.sa_kv_heads * dim, config.sa_mlp)
        shapes |= layer_shapes("cross_attention", hidden, query, config.ca_kv_heads * dim, config.ca_mlp)
        if config.lsa:
            keys = config.lsa_kv_heads * (width // config.lsa_heads)
            shapes |= layer_shapes("layer_self_attention", width, width, keys, config.lsa_mlp)
        if not config.ca:
            attention = ("cross_attention.self_attn.", "cross_attention.input_layernorm.")
            shapes = {each: shape for each, shape in shapes.items() if not each.startswith(attention)}
        return shapes

    def held(self, config: DrafterConfig) -> tuple[int, int]:
        heads = config.sa_kv_heads + config.ca * config.ca_kv_heads + config.reused_layers * config.target_kv_heads
        return heads, 1 if config.reused_layers else 0

    def memory_width(self, config: DrafterConfig) -> int:
        return 2 * config.ca_kv_heads * config.target_head_dim if config.ca else 0

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return config.ca and not config.lsa and not config.state_entries

    def not_served(self, config: DrafterConfig) -> str:
        if not config.ca:
            return "cross-attention" if config.reused_layers else ""
        return "layer self-attention" if self.reads_last_hidden(config) else ""

    def rows(self, config: DrafterConfig, own: Weights, weights: str) -> MakeRows:
        return KernelEncoder(config, own, weights).encode

    def torch_rows(self, config: DrafterConfig, tensors: Tensors, dtype: torch.dtype, device: Device) -> TorchRows:
        from moa_shared.drafter.kinds.torch_layers import MemoryEncoder

        return MemoryEncoder(config, tensors, dtype, device).encode


MOA = _Moa()
