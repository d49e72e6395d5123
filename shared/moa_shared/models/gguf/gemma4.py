"""Gemma 4 in GGUF: what llama.cpp calls its keys and tensors, of layers that differ in their sizes.

Pure over the header, but for the tensor of rotary factors. Source: llama.cpp's converter and its `src/models`.
Invariant: the keys and values are those that transformers gives the same model; what they cannot say is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.gguf.rope import FACTORS, read_factors, rope_theta
from moa_shared.models.network.description import FAMILIES
from moa_shared.models.network.family import MOST_LAYERS
from moa_shared.models.network.layer_sizes import FULL, SLIDING, layer_kinds, sizes_of, with_defaults

ARCHITECTURE, FAMILY = "gemma4", "gemma4_text"  # llama.cpp's name, and transformers'
_GELU = "gelu_pytorch_tanh"
_STILL = 1e29  # factors from here on mean numbers that are not rotated
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_IN_A_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp.scale": "mlp.gate.scale",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj.weight",
    "ffn_gate_exps.weight": "mlp.experts.gate_proj.weight",
    "ffn_up_exps.weight": "mlp.experts.up_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.down_proj.weight",
    "ffn_down_exps.scale": "mlp.gate.expert_scale",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
}
_NAME = re.compile(r"blk\.(\d+)\.(.+)")
Shapes = dict[str, tuple[int, ...]]


def gemma4_name(name: str) -> str | None:
    """transformers' name of a tensor; None for one that no Gemma 4 has."""
    match = _NAME.fullmatch(name)
    if match is None:
        return _OUTSIDE.get(name)
    module = _IN_A_LAYER.get(match[2])
    return None if module is None else f"model.layers.{int(match[1])}.{module}"


def gemma4_config(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the config.json of a Gemma 4 has besides what all have.

    Raises:
        ModelSourceError: keys that make no sense, or sizes that no Gemma 4 has.
    """
    count = min(int(config["num_hidden_layers"]), MOST_LAYERS)  # more are refused later
    kinds = _kinds(header, count)
    shared = header.integer(f"{ARCHITECTURE}.attention.shared_kv_layers") or 0
    if not 0 <= shared < count:
        raise _refusal(header, f"shares the keys and values of {shared} of {count} layers")
    first = count - shared
    heads = {SLIDING: header.required(f"{ARCHITECTURE}.attention.key_length_swa"), FULL: int(config["head_dim"])}
    numbers = _by_layer(header, "attention.head_count_kv", count)
    usual = next((number for number, kind in zip(numbers, kinds, strict=True) if kind == SLIDING), numbers[0])
    own: dict[str, Any] = {
        "model_type": FAMILY,
        "architectures": ["Gemma4ForCausalLM"],
        "hidden_act": _GELU,
        "hidden_activation": _GELU,
        "head_dim": heads[SLIDING],
        "global_head_dim": heads[FULL],
        "num_key_value_heads": usual,
        "per_layer_config": {
            str(layer): {"head_dim": heads[kind], "num_key_value_heads": number}
            for layer, (kind, number) in enumerate(zip(kinds, numbers, strict=True))
            if kind == FULL or number != usual
        },
        "layer_types": kinds,
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": any(
            kind == FULL and f"blk.{layer}.attn_v.weight" not in header.tensors
            for layer, kind in enumerate(kinds[:first])
        ),
        "sliding_window": header.required(f"{ARCHITECTURE}.attention.sliding_window"),
        "final_logit_softcapping": header.positive(f"{ARCHITECTURE}.final_logit_softcapping"),
        "rope_parameters": _angles(header, heads),
        "hidden_size_per_layer_input": header.integer(f"{ARCHITECTURE}.embedding_length_per_layer_input") or 0,
    }
    widths = _by_layer(header, "feed_forward_length", count)
    own["use_double_wide_mlp"] = widths[-1] != widths[0]
    own["intermediate_size"] = widths[0]
    if widths != [widths[0]] * first + [widths[0] * (2 if own["use_double_wide_mlp"] else 1)] * shared:
        raise _refusal(header, f"has MLPs of the widths {widths}")
    table = header.tensors.get("per_layer_token_embd.weight")
    if table is not None:
        own["vocab_size_per_layer_input"] = table.shape[0]
    return own | _experts(header)


def gemma4_shapes(config: Mapping[str, Any]) -> tuple[Shapes, Shapes]:
    """As `names.known_shapes`."""
    description = FAMILIES[FAMILY]
    config = with_defaults(config, description)
    hidden, heads, vocabulary = (int(config[key]) for key in ("hidden_size", "num_attention_heads", "vocab_size"))
    width, count = int(config["hidden_size_per_layer_input"]), int(config["num_hidden_layers"])
    required: Shapes = {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    others: Shapes = {"output.weight": (vocabulary, hidden)}
    if width:
        required["per_layer_token_embd.weight"] = (config.get("vocab_size_per_layer_input", vocabulary), count * width)
        required["per_layer_model_proj.weight"] = (count * width, hidden)
        required["per_layer_proj_norm.weight"] = (width,)
    for layer, sizes in enumerate(sizes_of(config, description, layer_kinds(config, description))):
        queries, keys = heads * sizes.heads.dim, sizes.heads.number * sizes.heads.dim
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        own: Shapes = {f"{stem}.weight": (hidden,) for stem in norms}
        own |= {"attn_q.weight": (queries, hidden), "attn_output.weight": (hidden, queries)}
        own |= {"attn_q_norm.weight": (sizes.heads.dim,)}
        own |= {f"ffn_{stem}.weight": (sizes.inner, hidden) for stem in ("gate", "up")}
        own["ffn_down.weight"] = (hidden, sizes.inner)
        kept: Shapes = {"attn_k.weight": (keys, hidden), "attn_k_norm.weight": (sizes.heads.dim,)}
        if not sizes.keys_are_values:
            kept["attn_v.weight"] = (keys, hidden)
        may: Shapes = {"layer_output_scale.weight": (1,)}
        if sizes.reads_layer is None:
            own |= kept
        else:
            may |= kept  # which files have, and nothing reads
        if width:
            own |= {"inp_gate.weight": (width, hidden), "proj.weight": (hidden, width), "post_norm.weight": (hidden,)}
        if config.get("enable_moe_block"):
            experts, fused = _expert_shapes(config)
            own, may = own | experts, may | fused
        required |= {f"blk.{layer}.{stem}": shape for stem, shape in own.items()}
        others |= {f"blk.{layer}.{stem}": shape for stem, shape in may.items()}
    return required, others


def _expert_shapes(config: Mapping[str, Any]) -> tuple[Shapes, Shapes]:
    """Of a layer's router and experts: needed, and those of which a file has one or two."""
    hidden, count, inner = (int(config[key]) for key in ("hidden_size", "num_experts", "moe_intermediate_size"))
    norms = ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
    needed: Shapes = {f"{stem}.weight": (hidden,) for stem in norms}
    needed |= {"ffn_gate_inp.weight": (count, hidden), "ffn_gate_inp.scale": (hidden,)}
    needed |= {"ffn_down_exps.weight": (count, hidden, inner), "ffn_down_exps.scale": (count,)}
    single: Shapes = {f"ffn_{stem}_exps.weight": (count, inner, hidden) for stem in ("gate", "up")}
    return needed, single | {"ffn_gate_up_exps.weight": (count, 2 * inner, hidden)}


def _experts(header: GgufHeader) -> dict[str, Any]:
    count = header.integer(f"{ARCHITECTURE}.expert_count") or 0
    if not count:
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": header.required(f"{ARCHITECTURE}.expert_used_count"),
        "moe_intermediate_size": header.required(f"{ARCHITECTURE}.expert_feed_forward_length"),
    }


def _kinds(header: GgufHeader, count: int) -> list[str]:
    """Each layer's kind; what transformers would not compute so is refused."""
    key = f"{ARCHITECTURE}.attention.sliding_window_pattern"
    said = header.metadata.get(key)
    if not isinstance(said, list) or len(said) != count or not count:
        raise ModelSourceError(
            f"The GGUF file {header.path} does not say in {key} which of {count} layers see a window.", hint=DAMAGED
        )
    kinds = [SLIDING if each else FULL for each in said]
    if kinds[-1] != FULL:
        raise _refusal(header, "has a last layer with a window")
    return kinds


def _by_layer(header: GgufHeader, key: str, count: int) -> list[int]:
    """A number for each layer, of which a file may say one for all."""
    said = header.metadata.get(f"{ARCHITECTURE}.{key}")
    if isinstance(said, list):
        if len(said) != count or any(type(each) is not int for each in said):
            raise ModelSourceError(
                f"The GGUF file {header.path} says {ARCHITECTURE}.{key} = {str(said)[:40]!r},"
                f" expected {count} whole numbers.",
                hint=DAMAGED,
            )
        return said
    return [header.required(f"{ARCHITECTURE}.{key}")] * count


def _angles(header: GgufHeader, heads: Mapping[str, int]) -> dict[str, Any]:
    """Of layers with a window: plain; of others only the first pairs of a head are rotated, as a tensor says."""
    for suffix, kind in (("", FULL), ("_swa", SLIDING)):
        rotated = header.integer(f"{ARCHITECTURE}.rope.dimension_count{suffix}") or heads[kind]
        if rotated != heads[kind]:
            raise _refusal(header, f"rotates {rotated} of a head's {heads[kind]} numbers")
    scaling = header.text(f"{ARCHITECTURE}.rope.scaling.type") or "none"
    if scaling != "none" and (header.positive(f"{ARCHITECTURE}.rope.scaling.factor") or 1.0) != 1.0:
        raise _refusal(header, f"scales its positions by {scaling!r}")
    if header.positive(f"{ARCHITECTURE}.rope.freq_base_swa") is None:
        raise ModelSourceError(
            f"The GGUF file {header.path} does not set {ARCHITECTURE}.rope.freq_base_swa.",
            hint="Use a GGUF file of a whole model.",
        )
    factors = read_factors(header, FACTORS, heads[FULL])
    turning = _turning(factors)
    if turning is None:
        raise _refusal(header, f"has factors in {FACTORS} that are not 1 for the first pairs and endless for others")
    share = turning / len(factors)
    return {
        FULL: {"rope_type": "proportional", "rope_theta": rope_theta(header), "partial_rotary_factor": share},
        SLIDING: {"rope_type": "default", "rope_theta": rope_theta(header, "_swa")},
    }


def _turning(factors: Sequence[float]) -> int | None:
    """How many pairs of a head are rotated; None: the others are rotated too, or none is."""
    turning = sum(factor == 1 for factor in factors)
    still = all(factor >= _STILL for factor in factors[turning:])
    return turning if turning and still and all(factor == 1 for factor in factors[:turning]) else None


def _refusal(header: GgufHeader, what: str) -> ModelSourceError:
    return ModelSourceError(
        f"{header.path} {what}, which no Gemma 4 that moa serves does.",
        hint="Use the same model as a folder of safetensors or a hub id.",
    )
