"""What a model computes besides its weights, from its config.json: sizes, angles, windows, scalings.

Pure. Invariant: a configuration that gives a plan is computed exactly; one that says what is not computed is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from moa_kernels import KernelError, Rotary, StackShape, cap
from moa_kernels.blocks import Rows
from moa_kernels.transformer.layer import CLAMPED_SWIGLU, GELU_TANH, SILU

from moa_shared.models.families import FAMILIES, Family
from moa_shared.models.gguf.keys import FULL, SLIDING
from moa_shared.models.network.layer_sizes import (
    LayerSizes,
    MixturePlan,
    embedding_width,
    layer_kinds,
    mixture_of,
    sizes_of,
    with_defaults,
)

_ACTIVATIONS = {"silu": SILU, "gelu_pytorch_tanh": GELU_TANH}
Kind = tuple[str, int]  # of a layer's angles: whether it sees a window, and the numbers of a head


@dataclass(frozen=True, slots=True)
class LayerPlan:
    window: int = 0  # how many positions it sees; 0: all
    rotary: int | None = 0  # which of the plan's angles turn it; None: none
    mixture: MixturePlan | None = None
    sizes: LayerSizes | None = None  # what it has of its own; None: those of the plan's shape
    embeds: bool = False  # it adds an embedding of its own


@dataclass(frozen=True, slots=True)
class Plan:
    family: Family
    shape: StackShape
    rotaries: tuple[Rotary, ...]
    layers: tuple[LayerPlan, ...]  # one for each
    embedding_scale: float = 1.0  # of what enters the first layer
    logits_scale: float = 1.0  # of the head's output
    logits_cap: float = 0.0  # logits become cap tanh(logit / cap); 0: they stay

    def why_not_alone(self, first: int) -> str:
        """Why a device cannot run the layers from `first` on from the rows that enter them; empty: it can."""
        for number, layer in enumerate(self.layers[first:], first):
            if layer.embeds:
                return f"layer {number} adds embeddings of its own, whose table stays on the server"
            if layer.sizes is not None and layer.sizes.reads_layer is not None:
                return f"layer {number} reads the keys and values of layer {layer.sizes.reads_layer}"
        return ""

    def logits(self, of_head: Rows) -> Rows:
        scaled = of_head * np.float32(self.logits_scale) if self.logits_scale != 1 else of_head
        return cap(scaled, self.logits_cap) if self.logits_cap else scaled


def plan_of(config: Mapping[str, Any], context: int = 0) -> Plan:
    """The plan of a model of a family that is served; KernelError: what the kernels do not compute.

    `context`: the most positions that texts will have (longrope); 0: as many as the model was made for.
    """
    family = FAMILIES[str(config.get("model_type") or "llama")]
    embedding = embedding_width(config, family)
    config = with_defaults(config, family)
    kinds = layer_kinds(config, family)
    sizes = sizes_of(config, family, kinds)
    angles = [(kind, each.heads.dim) for kind, each in zip(kinds, sizes, strict=True)]
    shape, rotaries = _shape(config, family, embedding), _rotaries(config, angles, context)
    turned = _turned_layers(config, family)
    window = int(config["sliding_window"]) if SLIDING in kinds else 0
    kind_numbers = {kind: number for number, kind in enumerate(rotaries)}
    layers = tuple(
        LayerPlan(
            window if kind == SLIDING else 0,
            (kind_numbers.get((kind, each.heads.dim), 0) if turns else None),
            mixture_of(config, family, layer),
            each if family.layers_differ else None,
            embedding > 0,
        )
        for layer, (kind, turns, each) in enumerate(zip(kinds, turned, sizes, strict=True))
    )
    scale = np.sqrt(np.float32(shape.hidden)) if family.scales_embeddings else config.get("embedding_multiplier", 1.0)
    logits_scale, cap_at = 1.0 / float(config.get("logits_scaling", 1.0)), config.get("final_logit_softcapping", 0.0)
    return Plan(family, shape, tuple(rotaries.values()), layers, float(scale), logits_scale, float(cap_at))


def _shape(config: Mapping[str, Any], family: Family, embedding: int) -> StackShape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    given = config.get("hidden_activation") or config.get("hidden_act")
    activation = family.activation if given is None else _ACTIVATIONS.get(str(given))
    if activation == SILU and family.activation == CLAMPED_SWIGLU:
        activation = CLAMPED_SWIGLU  # which gpt-oss's config.json calls silu
    if activation != family.activation:
        raise KernelError(f"The activation {given!r} is not computed by the kernels.")
    if "rms_norm_eps" not in config:
        raise KernelError("The configuration does not set rms_norm_eps.")
    scale = float(config.get("attention_multiplier", 0.0))
    if family.score_scale:
        scale = family.score_scale
    elif family.scales_embeddings:  # Gemma's key; others that happen to have it mean nothing by it
        scale = float(config["query_pre_attn_scalar"]) ** -0.5
    return StackShape(
        hidden=hidden,
        inner=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        eps=float(config["rms_norm_eps"]),
        activation=activation,
        score_scale=scale,
        score_cap=float(config.get("attn_logit_softcapping", 0.0)),
        qkv_clip=float(config.get("clip_qkv", 0.0)) if config.get("model_type") == "olmoe" else 0.0,
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        gate_slope=float(config.get("swiglu_alpha", 1.0)),
        gate_limit=float(config.get("swiglu_limit", 0.0)),
        embedding=embedding,
    )


def _turned_layers(config: Mapping[str, Any], family: Family) -> list[bool]:
    count, every = int(config["num_hidden_layers"]), family.no_rotary_every
    if not every:
        return [True] * count
    every = int(config.get("no_rope_layer_interval", every))
    return [bool(turns) for turns in config.get("no_rope_layers") or (layer % every for layer in range(1, count + 1))]


def _rotaries(config: Mapping[str, Any], kinds: list[Kind], context: int) -> dict[Kind, Rotary]:
    """Angles by kind of layer, where these differ; else one for all."""
    full, sliding = (FULL, kinds[0][1]), (SLIDING, kinds[0][1])
    positions = int(config.get("max_position_embeddings") or 8192)
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = config.get("rope_theta", 10000.0)

    def rotary(own: Mapping[str, Any], base: float, head_dim: int = full[1]) -> Rotary:
        filled = {"rope_theta": base, **own}
        for key in ("original_max_position_embeddings", "partial_rotary_factor"):
            if key in config:
                filled.setdefault(key, config[key])
        if config.get("model_type") == "phi3" and filled.get("rope_type", filled.get("type")) in ("su", "yarn"):
            filled["rope_type"] = "longrope"  # its former names
        return Rotary(head_dim, filled, positions, context)

    if {FULL, SLIDING} & parameters.keys():
        bases = {FULL: theta, SLIDING: config.get("rope_local_base_freq", theta)}
        return {(kind, dim): rotary(parameters.get(kind) or {}, bases[kind], dim) for kind, dim in dict.fromkeys(kinds)}
    if "rope_local_base_freq" in config:
        return {full: rotary(parameters, theta), sliding: rotary({}, config["rope_local_base_freq"])}
    if config.get("model_type") == "olmo3" and sliding in kinds:
        return {full: rotary(parameters, theta), sliding: rotary({}, theta)}
    return {full: rotary(parameters, theta)}
