"""What GGUF files say of each family besides sizes, by transformers' keys of config.json; the rows are in families.py.

Rotary parameters of all families come first: keys of the metadata, and factors that are tensors. Pure over the header,
but for these. Sources: llama.cpp's converter, `src/models` and `llama_model::get_rope_factors`. Invariant: the keys and
values are those that transformers gives the same model; what they cannot say, or is not understood, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.tensors import F32

FACTORS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTOR_TENSORS = frozenset({FACTORS, LONG_FACTORS, SHORT_FACTORS})
_DEFAULT_THETA = 10000.0  # llama.cpp's, where a file names none
_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def rope_parameters(header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of config.json, of the layers that see all positions."""
    family = header.architecture
    scaling = f"{family}.rope.scaling"
    kind = header.text(f"{scaling}.type") or "linear"
    factor = header.positive(f"{scaling}.factor") or header.positive(f"{family}.rope.scale_linear") or 1.0
    found: dict[str, Any] = {"rope_theta": rope_theta(header), "rope_type": "default"}
    rotated = header.integer(f"{family}.rope.dimension_count") or head_dim
    if not 0 < rotated <= head_dim or rotated % 2:
        raise _refusal(header, f"rotates {rotated} of a head's {head_dim} numbers")
    if rotated != head_dim:
        found["partial_rotary_factor"] = _share(rotated, head_dim)
    original = header.integer(f"{scaling}.original_context_length") or header.required(f"{family}.context_length")
    attention = header.positive(f"{scaling}.yarn_attn_factor") or header.positive(f"{scaling}.attn_factor")
    scaled: dict[str, Any] = {"original_max_position_embeddings": original}
    if attention:
        scaled["attention_factor"] = attention
    if FACTORS in header.tensors:
        factors = read_factors(header, FACTORS, rotated)
        if factor != 1:
            raise _refusal(header, f"scales its positions by {factor} and by {FACTORS}")
        return found | scaled | {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": attention or 1.0,
        }  # fmt: skip
    if LONG_FACTORS in header.tensors or SHORT_FACTORS in header.tensors:
        short, long = (read_factors(header, name, rotated) for name in (SHORT_FACTORS, LONG_FACTORS))
        return found | scaled | {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    if kind == "none" or (kind == "linear" and factor == 1):
        return found
    if kind == "linear":
        return found | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        log_scale = header.real(f"{scaling}.yarn_log_multiplier")
        if log_scale:
            scaled |= {"mscale": 1.0, "mscale_all_dim": log_scale}
        betas = {name: header.positive(f"{scaling}.{key}") for key, name in _YARN.items()}
        scaled |= {name: value for name, value in betas.items() if value}
        return found | scaled | {"rope_type": "yarn", "factor": factor}
    raise _refusal(header, f"scales its positions by {kind!r}")


def rope_theta(header: GgufHeader, suffix: str = "") -> float:
    """The base of its angles; `suffix`: of the layers with a window."""
    return header.positive(f"{header.architecture}.rope.freq_base{suffix}") or _DEFAULT_THETA


def read_factors(header: GgufHeader, name: str, rotated: int) -> list[float]:
    entry = header.tensors.get(name)
    if entry is None:
        raise _refusal(header, f"lacks {name}")
    if entry.stored != F32 or entry.shape != (rotated // 2,):
        raise ModelSourceError(
            f"{name} of {header.path} is {entry.stored.name} {list(entry.shape)}, expected f32 {[rotated // 2]}.",
            hint=DAMAGED,
        )
    values = np.fromfile(entry.path, "<f4", rotated // 2, offset=entry.offset)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ModelSourceError(f"{name} of {header.path} holds factors that are no numbers above 0.", hint=DAMAGED)
    return [float(value) for value in values]


def _share(rotated: int, head_dim: int) -> float:
    """The factor that, times `head_dim` and rounded down, is `rotated`."""
    share = rotated / head_dim
    return share if int(head_dim * share) == rotated else math.nextafter(share, 1)


Config = Mapping[str, Any]
SLIDING, FULL = "sliding_attention", "full_attention"  # kinds of layers
MOST_LAYERS = 1024  # the largest models have 126; a file that names a billion would be looked through for hours
GELU = "gelu_pytorch_tanh"
_GEMMA_4 = "gemma4"
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


def _real(header: GgufHeader, key: str, otherwise: float) -> float:
    return header.positive(f"{header.architecture}.{key}") or otherwise


def window(header: GgufHeader) -> int:
    return header.integer(f"{header.architecture}.attention.sliding_window") or 0


def _layer_types(header: GgufHeader, config: Config, every: int) -> list[str]:
    """Each layer's kind: as the file has it (a list, or how many make a period), else the last of `every` sees all."""
    key = f"{header.architecture}.attention.sliding_window_pattern"
    said = header.metadata.get(key)
    if isinstance(said, list):
        return [SLIDING if each else FULL for each in said]
    every = header.integer(key) or every
    count = min(config["num_hidden_layers"], MOST_LAYERS)  # more are refused later
    return [SLIDING if layer % every else FULL for layer in range(1, count + 1)]


def ministral3(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Queries grow with their position."""
    original = header.required("mistral3.rope.scaling.original_context_length")
    slope = header.positive("mistral3.attention.temperature_scale")
    scaling = {"llama_4_scaling_beta": slope, "original_max_position_embeddings": original}
    return {"rope_parameters": config["rope_parameters"] | scaling}


def _gemma(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Of the 27B models (of 46 and 62 layers) scores are scaled by a head's share of the hidden size (llama.cpp)."""
    heads, layers = config["num_attention_heads"], {"gemma2": 46, "gemma3": 62}[header.architecture]
    largest = config["num_hidden_layers"] == layers and heads > 0
    scalar = config["hidden_size"] // heads if largest else config["head_dim"]
    return {"hidden_act": GELU, "hidden_activation": GELU, "query_pre_attn_scalar": scalar}


def gemma2(header: GgufHeader, config: Config) -> dict[str, Any]:
    return _gemma(header, config) | {
        "attn_logit_softcapping": _real(header, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": _real(header, "final_logit_softcapping", 30.0),
        "sliding_window": window(header) or 4096,
        "layer_types": _layer_types(header, config, 2),
    }


def gemma3(header: GgufHeader, config: Config) -> dict[str, Any]:
    size, own = window(header), {"rope_theta": rope_theta(header, "_swa"), "rope_type": "default"}
    return _gemma(header, config) | {
        "final_logit_softcapping": header.positive("gemma3.final_logit_softcapping"),
        "sliding_window": size or 4096,
        "layer_types": _layer_types(header, config, 6 if size else 1),
        "rope_parameters": {FULL: config["rope_parameters"], SLIDING: own},
    }


def phi3(header: GgufHeader, config: Config) -> dict[str, Any]:
    """llama.cpp ignores the window, transformers does not."""
    original = header.integer("phi3.rope.scaling.original_context_length")
    return {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "partial_rotary_factor": config["rope_parameters"].get("partial_rotary_factor", 1.0),
        "sliding_window": window(header) or None,
    }


def olmo3(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Layers with a window are turned without scaling."""
    own = {"rope_theta": _real(header, "rope.freq_base_swa", rope_theta(header)), "rope_type": "default"}
    return {
        "sliding_window": window(header),
        "layer_types": _layer_types(header, config, 4),
        "rope_parameters": {FULL: config["rope_parameters"], SLIDING: own},
    }


def granite(header: GgufHeader, config: Config) -> dict[str, Any]:
    if header.flag("granite.rope.scaling.finetuned") is False:
        raise ModelSourceError(
            f"{header.path} is a Granite whose positions are not rotated, which moa does not compute.",
            hint="Choose a Granite 3 model.",
        )
    return {
        "attention_multiplier": _real(header, "attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": _real(header, "embedding_scale", 1.0),
        "residual_multiplier": _real(header, "residual_scale", 1.0),
        "logits_scaling": _real(header, "logit_scale", 1.0),
    }


def qwen3_moe(header: GgufHeader, config: Config) -> dict[str, Any]:
    norm = header.flag("qwen3moe.expert_weights_norm")
    return {"norm_topk_prob": norm is not False, "decoder_sparse_step": 1, "mlp_only_layers": []}


def olmoe(header: GgufHeader, config: Config) -> dict[str, Any]:
    clip = header.real("olmoe.attention.clamp_kqv") or None
    return {"norm_topk_prob": header.flag("olmoe.expert_weights_norm") is True, "clip_qkv": clip}


def gpt_oss(header: GgufHeader, config: Config) -> dict[str, Any]:
    """YaRN, whose ramp transformers does not round to whole pairs for gpt-oss."""
    scaling = "gpt-oss.rope.scaling"
    rope = {
        "rope_type": "yarn",
        "rope_theta": header.real("gpt-oss.rope.freq_base") or 150000.0,
        "factor": header.real(f"{scaling}.factor") or 1.0,
        "original_max_position_embeddings": header.integer(f"{scaling}.original_context_length") or 4096,
        "beta_fast": header.real(f"{scaling}.yarn_beta_fast") or 32.0,
        "beta_slow": header.real(f"{scaling}.yarn_beta_slow") or 1.0,
        "truncate": False,
    }
    return {"attention_bias": True, "sliding_window": window(header) or 128, "rope_parameters": rope}


def gemma4(header: GgufHeader, config: Config) -> dict[str, Any]:
    """Of layers that differ in their sizes."""
    count = min(int(config["num_hidden_layers"]), MOST_LAYERS)  # more are refused later
    kinds = _kinds(header, count)
    shared = header.integer(f"{_GEMMA_4}.attention.shared_kv_layers") or 0
    if not 0 <= shared < count:
        raise _refusal(header, f"shares the keys and values of {shared} of {count} layers")
    first = count - shared
    heads = {SLIDING: header.required(f"{_GEMMA_4}.attention.key_length_swa"), FULL: int(config["head_dim"])}
    numbers = _by_layer(header, "attention.head_count_kv", count)
    usual = next((number for number, kind in zip(numbers, kinds, strict=True) if kind == SLIDING), numbers[0])
    widths = _by_layer(header, "feed_forward_length", count)
    is_double = widths[-1] != widths[0]
    if widths != [widths[0]] * first + [widths[0] * (2 if is_double else 1)] * shared:
        raise _refusal(header, f"has MLPs of the widths {widths}")
    own: dict[str, Any] = {
        "hidden_act": GELU,
        "hidden_activation": GELU,
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
        "sliding_window": header.required(f"{_GEMMA_4}.attention.sliding_window"),
        "final_logit_softcapping": header.positive(f"{_GEMMA_4}.final_logit_softcapping"),
        "rope_parameters": _angles(header, heads),
        "hidden_size_per_layer_input": header.integer(f"{_GEMMA_4}.embedding_length_per_layer_input") or 0,
    }
    if (table := header.tensors.get("per_layer_token_embd.weight")) is not None:
        own["vocab_size_per_layer_input"] = table.shape[0]
    return own


def _kinds(header: GgufHeader, count: int) -> list[str]:
    """Each layer's kind; what transformers would not compute so is refused."""
    key = f"{_GEMMA_4}.attention.sliding_window_pattern"
    said = header.metadata.get(key)
    if not isinstance(said, list) or len(said) != count or not count:
        raise header.wrong(f"does not say in {key} which of {count} layers see a window")
    kinds = [SLIDING if each else FULL for each in said]
    if kinds[-1] != FULL:
        raise _refusal(header, "has a last layer with a window")
    return kinds


def _by_layer(header: GgufHeader, key: str, count: int) -> list[int]:
    said = header.metadata.get(f"{_GEMMA_4}.{key}")
    if isinstance(said, list):
        if len(said) != count or any(type(each) is not int for each in said):
            raise header.wrong(f"says {_GEMMA_4}.{key} = {str(said)[:40]!r}, expected {count} whole numbers")
        return said
    return [header.required(f"{_GEMMA_4}.{key}")] * count


def _angles(header: GgufHeader, heads: Mapping[str, int]) -> dict[str, Any]:
    """Of layers with a window: plain; of others only the first pairs of a head are rotated, as a tensor says."""
    for suffix, kind in (("", FULL), ("_swa", SLIDING)):
        rotated = header.integer(f"{_GEMMA_4}.rope.dimension_count{suffix}") or heads[kind]
        if rotated != heads[kind]:
            raise _refusal(header, f"rotates {rotated} of a head's {heads[kind]} numbers")
    scaling = header.text(f"{_GEMMA_4}.rope.scaling.type") or "none"
    if scaling != "none" and (header.positive(f"{_GEMMA_4}.rope.scaling.factor") or 1.0) != 1.0:
        raise _refusal(header, f"scales its positions by {scaling!r}")
    if header.positive(f"{_GEMMA_4}.rope.freq_base_swa") is None:
        raise header.wrong(f"does not set {_GEMMA_4}.rope.freq_base_swa", "Use a GGUF file of a whole model.")
    factors = read_factors(header, FACTORS, heads[FULL])
    turning, endless = sum(factor == 1 for factor in factors), 1e29  # the latter and above: not rotated
    is_split = all(each == 1 for each in factors[:turning]) and all(each >= endless for each in factors[turning:])
    if not turning or not is_split:
        raise _refusal(header, f"has factors in {FACTORS} that are not 1 for the first pairs and endless for others")
    share = turning / len(factors)
    return {
        FULL: {"rope_type": "proportional", "rope_theta": rope_theta(header), "partial_rotary_factor": share},
        SLIDING: {"rope_type": "default", "rope_theta": rope_theta(header, "_swa")},
    }


def _refusal(header: GgufHeader, what: str) -> ModelSourceError:
    who = "no Gemma 4 that moa serves does" if header.architecture == _GEMMA_4 else "moa does not read from GGUF"
    return ModelSourceError(
        f"{header.path} {what}, which {who}.",
        hint="Use the same model as a folder of safetensors or a hub id.",
    )
