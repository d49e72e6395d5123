"""Mixture of Attentions (arXiv 2410.03804): layer self-attention makes the memory, the target's last layers are reused.

The server's half is computed by the kernels here (layer self-attention is a layer of one stack whose rows are the
target's layers: each token is a session of its own, and every row of it sees all of them), by torch in
`torch_layers`; the device's half is `moa_decoder`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from moa_kernels import F32, Cache, Rotary, Segment, Stack, StackShape

from moa_shared.drafter.kinds.config import (
    Conversion,
    DeviceHalf,
    DrafterConfig,
    Kind,
    Layout,
    MakeRows,
    NewState,
    Published,
    Shapes,
)
from moa_shared.drafter.kinds.layout import check_whole, layer_shapes, rope_of, target_sizes
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder, DraftState
from moa_shared.drafter.layers.weights import Arithmetic, Rows
from moa_shared.errors import CheckpointError, InternalError
from moa_shared.models.network.network import Weights, read_layer, stack_shape

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
_THETA = 10_000.0  # where neither configuration names one
_BATCH = 16  # tokens a pass: 480 rows of a target with 30 layers


class KernelEncoder:
    """Encodes newly verified tokens; for one thread at a time."""

    def __init__(self, config: DrafterConfig, own: Weights, weights: str) -> None:
        self.config = config
        width, head_dim = config.kv_width, config.kv_width // config.lsa_heads
        sizes = (config.hidden_size, width, head_dim, config.lsa_mlp) if config.lsa else (config.hidden_size,)
        self.arithmetic = arithmetic = Arithmetic.of(weights, sizes)
        self._norm = own.array("cross_attention.input_layernorm.weight")
        self._keys_values = arithmetic.linear(
            [own.array(f"cross_attention.self_attn.{which}_proj.weight") for which in "kv"]
        )
        self._stack: Stack | None = None
        self._caches: list[Cache] = []
        if config.lsa:
            shape = StackShape(
                width, config.lsa_mlp, config.lsa_heads, config.lsa_kv_heads, head_dim, config.rms_norm_eps
            )
            layer = read_layer(own, "layer_self_attention", arithmetic.linear)
            self._stack = arithmetic.stack(shape, [layer], Rotary(head_dim, config.memory_rope))
            self._to_hidden = arithmetic.linear([own.array("Ekv2E.weight")], own.array("Ekv2E.bias"))
        if config.state_entries:
            self._to_hidden = arithmetic.linear([own.array("fc.weight")])

    def memory(self, kv: Rows) -> Rows:
        """[tokens, hidden size] from keys and values [tokens, layers, KV width] (interleaved by KV head)."""
        parts = [
            self._to_hidden(self._mean_over_layers(kv[start : start + _BATCH])) for start in range(0, len(kv), _BATCH)
        ]
        return np.concatenate(parts)

    def project(self, memory: Rows) -> Rows:
        """Wire rows, un-rotated keys then values, from memory rows (without LSA the target's last hidden state)."""
        return self._keys_values(self.arithmetic.norm(memory, self._norm, self.config.rms_norm_eps))

    def encode_states(self, states: Rows) -> Rows:
        return self.project(self._to_hidden(states))

    def encode(self, kv: Rows) -> Rows:
        return self.project(self.memory(kv)) if len(kv) else np.empty((0, self.config.memory_width), np.float32)

    def _mean_over_layers(self, kv: Rows) -> Rows:
        tokens, layers, width = kv.shape
        stack = self._stack
        if stack is None:
            raise InternalError("Layer self-attention was requested from a drafter without it.")
        while len(self._caches) < tokens:
            self._caches.append(stack.new_cache(kv=F32))
        numbers = np.arange(layers, dtype=np.int32)
        everything, no_tails = np.full(layers, layers, np.int32), np.zeros(layers + 1, np.int32)
        segments = [Segment(cache, 0, numbers, everything, no_tails, numbers[:0]) for cache in self._caches[:tokens]]
        out, _ = stack.run(kv.reshape(tokens * layers, width), segments)
        mean: Rows = out.reshape(tokens, layers, width).mean(axis=1)
        return mean


def _fits(names: Collection[str]) -> bool:
    return any(name.startswith(("layer_self_attention.", "cross_attention.")) for name in names)


def _convert(of: Published) -> Conversion:
    if of.config.get("disable_LSA"):
        raise CheckpointError(
            f"{of.where} was trained without layer self-attention (disable_LSA): moa does not serve it.",
            hint="Give a checkpoint with it, or train a drafter with moa-train fit.",
        )
    kept, stack = check_whole(of, "Mixture of Attentions", "Ekv2E.weight"), stack_shape(of.target)
    head_dim, lsa_dim = stack.head_dim, max(1, 2 * stack.kv_heads * stack.head_dim // stack.heads)

    def kv_heads(part: str, dim: int) -> int:
        return of.shapes[f"{part}.self_attn.k_proj.weight"][0] // dim

    def inner(part: str) -> int:
        return of.shapes[f"{part}.mlp.up_proj.weight"][0]

    rope = rope_of(of.config, rope_of(of.target, _THETA)["rope_theta"])
    config = DrafterConfig(
        **target_sizes(of.target),
        sa_kv_heads=kv_heads("self_attention", head_dim),
        sa_mlp=inner("self_attention"),
        ca_kv_heads=kv_heads("cross_attention", head_dim),
        ca_mlp=inner("cross_attention"),
        lsa_heads=stack.heads,
        lsa_kv_heads=kv_heads("layer_self_attention", lsa_dim),
        lsa_mlp=inner("layer_self_attention"),
        rms_norm_eps=float(of.config.get("rms_norm_eps", stack.eps)),
        rope_parameters=rope,
        unscaled_memory_rope=rope["rope_type"] != "default",
        reused_layers=int(of.config.get("target_layer_inference", 0)),
    )
    return config, {name: name for name in kept}


class _Moa(Kind):
    name = "moa"
    label = "MoA"
    about = "A Mixture of Attentions drafter (arXiv 2410.03804)"
    variants: ClassVar = {"moa": "Mixture of Attentions"}
    layouts = (Layout("Mixture of Attentions", _fits, _convert),)
    takes = frozenset({"reused_layers", "ca", "state_entries"})
    objective = "memory"
    maps_target = True
    shares_memory = True
    is_timed = True

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {
            "state_entries are in place of layer self-attention": not (config.lsa and config.state_entries),
            "without ca there is no memory to make": config.ca or not (config.lsa or config.state_entries),
        }

    def method(self, config: DrafterConfig) -> str:
        return f"MoA, N = {config.reused_layers}{'' if config.ca else ', no CA'}"

    def form(self, config: DrafterConfig) -> Mapping[str, str]:
        memory = "the last hidden state"
        if not config.ca:
            memory = "none: no cross-attention"
        elif config.lsa:
            memory = f"layer self-attention, {config.lsa_heads} heads, MLP {config.lsa_mlp}"
        elif config.state_entries:
            memory = f"hidden states {', '.join(map(str, config.state_entries))}"
        return {
            "reused target layers N": str(config.reused_layers),
            "memory": memory,
            "longest block trained": f"{config.max_block} tokens beyond the memory",
        }

    def layers(self, config: DrafterConfig) -> list[str]:
        return ["self_attention", "cross_attention"]

    def begins_as(self, config: DrafterConfig) -> dict[str, int]:
        return {"self_attention": 0, "cross_attention": config.target_layers - 1 - config.reused_layers}

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden, width, dim = config.hidden_size, config.kv_width, config.target_head_dim
        query = config.target_heads * dim
        sizes = {
            "self_attention": (hidden, query, config.sa_kv_heads * dim, config.sa_mlp),
            "cross_attention": (hidden, query, config.ca_kv_heads * dim, config.ca_mlp),
        }
        shapes: Shapes = {}
        if config.lsa:
            keys = config.lsa_kv_heads * (width // config.lsa_heads)
            sizes["layer_self_attention"] = (width, width, keys, config.lsa_mlp)
            shapes = {"Ekv2E.weight": (hidden, width), "Ekv2E.bias": (hidden,)}
        if config.state_entries:
            shapes = {"fc.weight": (hidden, len(config.state_entries) * hidden)}
        for name, (model, queries, keys, inner) in sizes.items():
            shapes |= layer_shapes(name, model, queries, keys, inner)
        if not config.ca:
            attention = ("cross_attention.self_attn.", "cross_attention.input_layernorm.")
            shapes = {each: shape for each, shape in shapes.items() if not each.startswith(attention)}
        return shapes

    def server_tensors(self, config: DrafterConfig) -> tuple[str, ...]:
        return ENCODER_TENSORS

    def held(self, config: DrafterConfig) -> tuple[int, int]:
        heads = config.sa_kv_heads + config.ca * config.ca_kv_heads + config.reused_layers * config.target_kv_heads
        return heads, 1 if config.reused_layers else 0

    def memory_width(self, config: DrafterConfig) -> int:
        """Un-rotated cross-attention keys, then values."""
        return 2 * config.ca_kv_heads * config.target_head_dim if config.ca else 0

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return config.ca and not config.lsa and not config.state_entries

    def not_served(self, config: DrafterConfig) -> str:
        if not config.ca:
            return "cross-attention" if config.reused_layers else ""
        return "layer self-attention" if self.reads_last_hidden(config) else ""

    def rows(self, config: DrafterConfig, own: Weights, weights: str) -> MakeRows:
        encoder = KernelEncoder(config, own, weights)
        if config.state_entries:
            return encoder.encode_states
        return encoder.project if config.reads_last_hidden else encoder.encode

    def torch_rows(self, config: DrafterConfig, tensors: Tensors, dtype: torch.dtype, device: Device) -> TorchRows:
        from moa_shared.drafter.kinds.torch_layers import load_encoder

        encoder = load_encoder(config, tensors, dtype, device)
        if config.state_entries:
            return encoder.encode_states
        return encoder.project if config.reads_last_hidden else encoder.encode

    def states(self, half: DeviceHalf) -> NewState:
        decoder = DraftDecoder(half)
        return lambda: DraftState(decoder)


MOA = _Moa()
