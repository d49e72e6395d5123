"""What GGUF files say of each family besides sizes, by transformers' keys of config.json; the rows are in families.py.

Rotary parameters come first. Pure over the header, but for factors that are tensors. Sources: llama.cpp's converter,
`src/models` and `llama_model::get_rope_factors`. Invariant: keys and values are those that transformers
gives the same model; what they cannot say, or is not understood, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from moa_shared.models.storage.gguf_header import GgufHeader
from moa_shared.models.storage.tensors import F32

FACTORS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTOR_TENSORS = frozenset({FACTORS, LONG_FACTORS, SHORT_FACTORS})


def rope_parameters(header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of config.json, of the layers that see all positions."""
    kind = header.text("rope.scaling.type") or "linear"
    factor = header.positive("rope.scaling.factor") or header.positive("rope.scale_linear") or 1.0
    found: dict[str, Any] = {"rope_theta": rope_theta(header), "rope_type": "default"}
    rotated = header.integer("rope.dimension_count") or head_dim
    if not 0 < rotated <= head_dim or rotated % 2:
        raise header.unread(f"rotates {rotated} of a head's {head_dim} numbers")
    if rotated != head_dim:
        share = rotated / head_dim  # the factor that, times `head_dim` and rounded down, is `rotated`
        found["partial_rotary_factor"] = share if int(head_dim * share) == rotated else math.nextafter(share, 1)
    original = header.integer("rope.scaling.original_context_length") or header.required("context_length")
    attention = header.positive("rope.scaling.yarn_attn_factor") or header.positive("rope.scaling.attn_factor")
    scaled: dict[str, Any] = {"original_max_position_embeddings": original}
    if attention:
        scaled["attention_factor"] = attention
    if FACTORS in header.tensors:
        factors = read_factors(header, FACTORS, rotated)
        if factor != 1:
            raise header.unread(f"scales its positions by {factor} and by {FACTORS}")
        scaled |= {"short_factor": factors, "long_factor": factors, "attention_factor": attention or 1.0}
        return found | scaled | {"rope_type": "longrope"}
    if LONG_FACTORS in header.tensors or SHORT_FACTORS in header.tensors:
        short, long = (read_factors(header, name, rotated) for name in (SHORT_FACTORS, LONG_FACTORS))
        return found | scaled | {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    if kind == "none" or (kind == "linear" and factor == 1):
        return found
    if kind == "linear":
        return found | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        log_scale = header.real("rope.scaling.yarn_log_multiplier")
        if log_scale:
            scaled |= {"mscale": 1.0, "mscale_all_dim": log_scale}
        betas = {name: header.positive(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        scaled |= {name: value for name, value in betas.items() if value}
        return found | scaled | {"rope_type": "yarn", "factor": factor}
    raise header.unread(f"scales its positions by {kind!r}")


def rope_theta(header: GgufHeader, suffix: str = "") -> float:
    """The base of its angles; `suffix`: of the layers with a window. llama.cpp's where a file names none."""
    return header.positive(f"rope.freq_base{suffix}") or 10000.0


def read_factors(header: GgufHeader, name: str, rotated: int) -> list[float]:
    entry = header.tensors.get(name)
    if entry is None:
        raise header.unread(f"lacks {name}")
    if entry.stored != F32 or entry.shape != (rotated // 2,):
        raise header.wrong(f"has {name} in {entry.stored.name} {list(entry.shape)}, expected f32 {[rotated // 2]}")
    values = np.fromfile(entry.path, "<f4", rotated // 2, offset=entry.offset)
    if not (np.isfinite(values) & (values > 0)).all():
        raise header.wrong(f"has factors in {name} that are no numbers above 0")
    return [float(value) for value in values]


Config = Mapping[str, Any]
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"  # kinds of layers
TILED = "linear_value_heads_tiled"  # of the configuration that is made of a GGUF file
MOST_LAYERS = 1024  # the largest models have 126; a file that names a billion would be looked through for hours
_GELU: dict[str, Any] = dict.fromkeys(("hidden_act", "hidden_activation"), "gelu_pytorch_tanh")
GEMMA_4_TENSORS = {
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
    "ffn_gate_inp.scale": "mlp.gate.scale",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj.weight",
    "ffn_down_exps.scale": "mlp.gate.expert_scale",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
}


def window(header: GgufHeader) -> int:
    return header.integer("attention.sliding_window") or 0


def _layer_types(header: GgufHeader, config: Config, every: int) -> list[str]:
    """Each layer's kind: as the file has it (a list, or how many make a period), else the last of `every` sees all."""
    said = header.said("attention.sliding_window_pattern")
    if isinstance(said, list):
        return [SLIDING if each else FULL for each in said]
    every = header.integer("attention.sliding_window_pattern") or every
    count = min(config["num_hidden_layers"], MOST_LAYERS)  # more are refused later
    return [SLIDING if layer % every else FULL for layer in range(1, count + 1)]


def _by_kind(config: Config, theta: float) -> dict[str, Any]:
    return {FULL: config["rope_parameters"], SLIDING: {"rope_theta": theta, "rope_type": "default"}}


def ministral3(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Queries grow with their position."""
    original = header.required("rope.scaling.original_context_length")
    slope = header.positive("attention.temperature_scale")
    scaling = {"llama_4_scaling_beta": slope, "original_max_position_embeddings": original}
    return {"rope_parameters": config["rope_parameters"] | scaling}


def _gemma(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Of the 27B models (of 46 and 62 layers) scores are scaled by a head's share of the hidden size (llama.cpp)."""
    heads, layers = config["num_attention_heads"], {"gemma2": 46, "gemma3": 62}[header.architecture]
    largest = config["num_hidden_layers"] == layers and heads > 0
    scalar = config["hidden_size"] // heads if largest else config["head_dim"]
    return _GELU | {"query_pre_attn_scalar": scalar, "sliding_window": window(header) or 4096}


def gemma2(header: GgufHeader, config: Config) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    own = {key: header.positive(key) or usual for key, usual in caps.items()}
    return _gemma(header, config) | own | {"layer_types": _layer_types(header, config, 2)}


def gemma3(header: GgufHeader, config: Config) -> dict[str, Any]:
    return _gemma(header, config) | {
        "final_logit_softcapping": header.positive("final_logit_softcapping"),
        "layer_types": _layer_types(header, config, 6 if window(header) else 1),
        "rope_parameters": _by_kind(config, rope_theta(header, "_swa")),
    }


def phi3(header: GgufHeader, config: Config) -> dict[str, Any]:
    """llama.cpp ignores the window, transformers does not."""
    original = header.integer("rope.scaling.original_context_length")
    return {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "partial_rotary_factor": config["rope_parameters"].get("partial_rotary_factor", 1.0),
        "sliding_window": window(header) or None,
    }


def olmo3(header: GgufHeader, config: Config) -> dict[str, Any]:
    theta = header.positive("rope.freq_base_swa") or rope_theta(header)
    kinds = {"layer_types": _layer_types(header, config, 4), "sliding_window": window(header)}
    return kinds | {"rope_parameters": _by_kind(config, theta)}


def granite(header: GgufHeader, config: Config) -> dict[str, Any]:
    if header.flag("rope.scaling.finetuned") is False:
        raise header.wrong(
            "is a Granite whose positions are not rotated, which moa does not compute", "Choose a Granite 3 model."
        )
    return {
        "attention_multiplier": header.positive("attention.scale") or config["head_dim"] ** -0.5,
        "embedding_multiplier": header.positive("embedding_scale") or 1.0,
        "residual_multiplier": header.positive("residual_scale") or 1.0,
        "logits_scaling": header.positive("logit_scale") or 1.0,
    }


def qwen3_moe(header: GgufHeader, config: Config) -> dict[str, Any]:
    norm = header.flag("expert_weights_norm")
    return {"norm_topk_prob": norm is not False, "decoder_sparse_step": 1, "mlp_only_layers": []}


def olmoe(header: GgufHeader, config: Config) -> dict[str, Any]:
    clip = header.real("attention.clamp_kqv") or None
    return {"norm_topk_prob": header.flag("expert_weights_norm") is True, "clip_qkv": clip}


def gpt_oss(header: GgufHeader, config: Config) -> dict[str, Any]:
    """YaRN, whose ramp transformers does not round to whole pairs for gpt-oss."""
    rope = {"beta_fast": 32.0, "beta_slow": 1.0} | config["rope_parameters"] | {"truncate": False}
    return {"attention_bias": True, "sliding_window": window(header) or 128, "rope_parameters": rope}


def gemma4(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Of layers that differ in their sizes; what transformers would not compute so is refused."""
    count = min(int(config["num_hidden_layers"]), MOST_LAYERS)  # more are refused later
    said = header.said("attention.sliding_window_pattern")
    if not isinstance(said, list) or len(said) != count or not count:
        raise header.wrong(f"does not say which of {count} layers see a window")
    kinds = [SLIDING if each else FULL for each in said]
    if kinds[-1] != FULL:
        raise header.unread("has a last layer with a window")
    shared = header.integer("attention.shared_kv_layers") or 0
    if not 0 <= shared < count:
        raise header.unread(f"shares the keys and values of {shared} of {count} layers")
    first = count - shared
    heads = {SLIDING: header.required("attention.key_length_swa"), FULL: int(config["head_dim"])}
    numbers = _by_layer(header, "attention.head_count_kv", count)
    usual = next((number for number, kind in zip(numbers, kinds, strict=True) if kind == SLIDING), numbers[0])
    widths = _by_layer(header, "feed_forward_length", count)
    is_double = widths[-1] != widths[0]
    if widths != [widths[0]] * first + [widths[0] * (2 if is_double else 1)] * shared:
        raise header.unread(f"has MLPs of the widths {widths}")
    own = _GELU | {
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
        "use_double_wide_mlp": is_double,
        "intermediate_size": widths[0],
        "sliding_window": header.required("attention.sliding_window"),
        "final_logit_softcapping": header.positive("final_logit_softcapping"),
        "rope_parameters": _angles(header, heads),
        "hidden_size_per_layer_input": header.integer("embedding_length_per_layer_input") or 0,
    }
    if (table := header.tensors.get("per_layer_token_embd.weight")) is not None:
        own["vocab_size_per_layer_input"] = table.shape[0]
    return own


HYBRID_TENSORS = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_in.weight": "linear_attn.in_proj_qkvz.weight",  # of files before 2026
    "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_a": "linear_attn.A",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    **{f"ffn_{each}_shexp.weight": f"mlp.shared_expert.{each}_proj.weight" for each in ("gate", "up", "down")},
}


def hybrid(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Of layers with gated delta nets."""
    layers = min(int(config["num_hidden_layers"]), MOST_LAYERS)  # more are refused later
    said, every = header.said("attention.recurrent_layers"), header.integer("full_attention_interval")
    every = 4 if every is None else every
    if every < 1 or (isinstance(said, list) and len(said) < layers):
        raise header.wrong(f"does not say which of {layers} layers have attention")
    recurs = said[:layers] if isinstance(said, list) else [layer % every > 0 for layer in range(1, layers + 1)]
    heads, key_heads = header.required("ssm.time_step_rank"), header.required("ssm.group_count")
    if heads < 1 or header.required("ssm.inner_size") % heads:
        raise header.wrong(f"shares {header.required('ssm.inner_size')} values among {heads} heads")
    return {
        "layer_types": [LINEAR if each else FULL for each in recurs],
        "linear_num_value_heads": heads,
        "linear_num_key_heads": key_heads,
        "linear_key_head_dim": header.required("ssm.state_size"),
        "linear_value_head_dim": header.required("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": header.required("ssm.conv_kernel"),
        TILED: header.architecture != "qwen3next",
        "shared_expert_intermediate_size": header.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": header.flag("expert_weights_norm") is not False,
    }


def _by_layer(header: GgufHeader, key: str, count: int) -> list[int]:
    said = header.said(key)
    if not isinstance(said, list):
        return [header.required(key)] * count
    if len(said) != count or any(type(each) is not int for each in said):
        raise header.wrong(f"says {header.full(key)} = {str(said)[:40]!r}, expected {count} whole numbers")
    return said


def _angles(header: GgufHeader, heads: Mapping[str, int]) -> dict[str, Any]:
    """Of layers with a window: plain; of others only the first pairs of a head are rotated, as a tensor says."""
    for suffix, kind in (("", FULL), ("_swa", SLIDING)):
        rotated = header.integer(f"rope.dimension_count{suffix}") or heads[kind]
        if rotated != heads[kind]:
            raise header.unread(f"rotates {rotated} of a head's {heads[kind]} numbers")
    scaling = header.text("rope.scaling.type") or "none"
    if scaling != "none" and (header.positive("rope.scaling.factor") or 1.0) != 1.0:
        raise header.unread(f"scales its positions by {scaling!r}")
    if header.positive("rope.freq_base_swa") is None:
        raise header.wrong("does not set gemma4.rope.freq_base_swa", "Use a GGUF file of a whole model.")
    factors = read_factors(header, FACTORS, heads[FULL])
    turning, endless = sum(factor == 1 for factor in factors), 1e29  # the latter and above: not rotated
    is_split = all(each == 1 for each in factors[:turning]) and all(each >= endless for each in factors[turning:])
    if not turning or not is_split:
        raise header.unread(f"has factors in {FACTORS} that are not 1 for the first pairs and endless for others")
    share = turning / len(factors)
    return {
        FULL: {"rope_type": "proportional", "rope_theta": rope_theta(header), "partial_rotary_factor": share},
        SLIDING: {"rope_type": "default", "rope_theta": rope_theta(header, "_swa")},
    }
