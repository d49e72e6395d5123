"""What a model computes besides its weights, from its config.json: sizes, angles, windows, scalings.

Pure. Invariant: a configuration that gives a plan is computed exactly; one that says what is not computed is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from moa_kernels import KernelError, Rotary, StackShape, cap
from moa_kernels.blocks import Rows
from moa_kernels.transformer.stack import CLAMPED_SWIGLU, GELU_TANH, SILU

from moa_shared.models.network.description import FAMILIES, Description
from moa_shared.models.network.mixture import MixturePlan, mixture_of

_ACTIVATIONS = {"silu": SILU, "gelu_pytorch_tanh": GELU_TANH}
_WHOLE_QWEN_LAYERS = 28  # that see all positions, where max_window_layers does not say
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What one layer does: its window (0: none), which of the plan's angles turn it (None: none), and its experts."""

    window: int = 0
    rotary: int | None = 0
    mixture: MixturePlan | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A model's computation.

    Args:
        layers: one for each.
        embedding_scale: of what enters the first layer.
        logits_scale: of the head's output.
        logits_cap: logits become cap tanh(logit / cap); 0: they stay.
    """

    description: Description
    shape: StackShape
    rotaries: tuple[Rotary, ...]
    layers: tuple[LayerPlan, ...]
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float = 0.0

    def logits(self, of_head: Rows) -> Rows:
        """The model's logits, from what the head gives."""
        scaled = of_head * np.float32(self.logits_scale) if self.logits_scale != 1 else of_head
        return cap(scaled, self.logits_cap) if self.logits_cap else scaled


def plan_of(config: Mapping[str, Any], context: int = 0) -> Plan:
    """The plan of a model.

    Args:
        config: the content of its config.json, of a family that is served.
        context: the most positions that texts will have (longrope); 0: as many as the model was made for.

    Raises:
        KernelError: what the kernels do not compute.
    """
    family = str(config.get("model_type") or "llama")
    description = FAMILIES[family]
    config = {**description.defaults, **{key: value for key, value in config.items() if value is not None}}
    kinds = _layer_types(config, description)
    shape, rotaries = _shape(config, description), _rotaries(config, kinds, context)
    turned = _turned_layers(config, description)
    window = int(config["sliding_window"]) if _SLIDING in kinds else 0
    kind_numbers = {kind: number for number, kind in enumerate(rotaries)}
    layers = tuple(
        LayerPlan(
            window if kind == _SLIDING else 0,
            (kind_numbers.get(kind, 0) if turns else None),
            mixture_of(config, description, layer),
        )
        for layer, (kind, turns) in enumerate(zip(kinds, turned, strict=True))
    )
    return Plan(
        description,
        shape,
        tuple(rotaries.values()),
        layers,
        float(np.sqrt(np.float32(shape.hidden)))
        if description.scales_embeddings
        else float(config.get("embedding_multiplier", 1.0)),
        1.0 / float(config.get("logits_scaling", 1.0)),
        float(config.get("final_logit_softcapping", 0.0)),
    )


def _shape(config: Mapping[str, Any], description: Description) -> StackShape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    given = config.get("hidden_activation") or config.get("hidden_act")
    activation = description.activation if given is None else _ACTIVATIONS.get(str(given))
    if activation == SILU and description.activation == CLAMPED_SWIGLU:
        activation = CLAMPED_SWIGLU  # which gpt-oss's config.json calls silu
    if activation != description.activation:
        raise KernelError(f"The activation {given!r} is not computed by the kernels.")
    if "rms_norm_eps" not in config:
        raise KernelError("The configuration does not set rms_norm_eps.")
    scale = float(config.get("attention_multiplier", 0.0))
    if description.scales_embeddings:  # Gemma's key; others that happen to have it mean nothing by it
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
    )


def _layer_types(config: Mapping[str, Any], description: Description) -> list[str]:
    count, every = int(config["num_hidden_layers"]), description.window_every
    if config.get("layer_types"):
        return list(config["layer_types"])
    if config.get("use_sliding_window") and every is None and config.get("sliding_window"):  # Qwen's keys
        first = 0 if description.mixture is not None else int(config.get("max_window_layers", _WHOLE_QWEN_LAYERS))
        return [_SLIDING if layer >= first else _FULL for layer in range(count)]
    if every is None or not config.get("sliding_window"):
        return [_FULL] * count
    every = int(config.get("sliding_window_pattern", every))
    return [_SLIDING if not every or layer % every else _FULL for layer in range(1, count + 1)]


def _turned_layers(config: Mapping[str, Any], description: Description) -> list[bool]:
    count, every = int(config["num_hidden_layers"]), description.no_rotary_every
    if not every:
        return [True] * count
    every = int(config.get("no_rope_layer_interval", every))
    return [bool(turns) for turns in config.get("no_rope_layers") or (layer % every for layer in range(1, count + 1))]


def _rotaries(config: Mapping[str, Any], kinds: list[str], context: int) -> dict[str, Rotary]:
    """Angles by kind of layer, where these differ; else one for all."""
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    positions = int(config.get("max_position_embeddings") or 8192)
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = config.get("rope_theta", 10000.0)

    def rotary(own: Mapping[str, Any], base: float) -> Rotary:
        filled = {"rope_theta": base, **own}
        for key in ("original_max_position_embeddings", "partial_rotary_factor"):
            if key in config:
                filled.setdefault(key, config[key])
        if config.get("model_type") == "phi3" and filled.get("rope_type", filled.get("type")) in ("su", "yarn"):
            filled["rope_type"] = "longrope"  # its former names
        return Rotary(head_dim, filled, positions, context)

    if {_FULL, _SLIDING} & parameters.keys():
        bases = {_FULL: theta, _SLIDING: config.get("rope_local_base_freq", theta)}
        return {kind: rotary(parameters.get(kind) or {}, bases[kind]) for kind in dict.fromkeys(kinds)}
    if "rope_local_base_freq" in config:
        local = rotary({}, config["rope_local_base_freq"])
        return {_FULL: rotary(parameters, theta), _SLIDING: local}
    if config.get("model_type") == "olmo3" and _SLIDING in kinds:
        return {_FULL: rotary(parameters, theta), _SLIDING: rotary({}, theta)}
    return {_FULL: rotary(parameters, theta)}
