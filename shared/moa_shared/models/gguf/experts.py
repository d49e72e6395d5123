"""Mixtures of experts in GGUF: what llama.cpp calls the families and their tensors, and what its code says of each.

Pure over the header. Sources: llama.cpp's converter and `src/models`. Invariant: the keys and values are those that
transformers gives the same model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from moa_shared.models.gguf.header import GgufHeader

_FAMILIES = {"qwen3moe": "qwen3_moe", "olmoe": "olmoe", "gpt-oss": "gpt_oss"}
_CLASSES = {"qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe", "gpt_oss": "GptOss", "mixtral": "Mixtral"}
ARCHITECTURES = tuple(_FAMILIES)  # and Llama's, whose files with experts are Mixtrals
EXPERTS = {  # a layer's router and its experts, in place of an MLP
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_APART = re.compile(r"ffn_(gate|up|down)\.(\d+)")  # as files of 2024 have an expert, each in tensors of its own
_GPT_OSS_WINDOW, _GPT_OSS_CONTEXT = 128, 4096


def expert_module(stem: str) -> str | None:
    """`ffn_gate.3` -> `mlp.experts.3.gate_proj`; None for what is not the tensor of one expert."""
    match = _APART.fullmatch(stem)
    return None if match is None else f"mlp.experts.{int(match[2])}.{match[1]}_proj"


def mixture_family(header: GgufHeader) -> str | None:
    """transformers' name of the family, if the file holds experts."""
    if header.architecture == "llama":
        return "mixtral" if header.integer("llama.expert_count") else None
    return _FAMILIES.get(header.architecture)


def mixture_config(header: GgufHeader) -> dict[str, Any]:
    """What the config.json of a model with experts has besides what all have; empty for a model without.

    Raises:
        ModelSourceError: a key is missing.
    """
    family, own = mixture_family(header), header.architecture
    if family is None:
        return {}
    count = "num_local_experts" if family in ("mixtral", "gpt_oss") else "num_experts"
    inner = header.integer(f"{own}.expert_feed_forward_length") or header.required(f"{own}.feed_forward_length")
    norm = header.flag(f"{own}.expert_weights_norm")
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": [f"{_CLASSES[family]}ForCausalLM"],
        count: header.required(f"{own}.expert_count"),
        "num_experts_per_tok": header.required(f"{own}.expert_used_count"),
    }
    if family == "qwen3_moe":
        config |= {"moe_intermediate_size": inner, "norm_topk_prob": norm is not False}
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    else:
        config["intermediate_size"] = inner
    if family == "olmoe":
        config |= {"norm_topk_prob": norm is True, "clip_qkv": header.real("olmoe.attention.clamp_kqv") or None}
    if family == "gpt_oss":
        config |= {
            "attention_bias": True,
            "sliding_window": header.integer("gpt-oss.attention.sliding_window") or _GPT_OSS_WINDOW,
            "rope_parameters": _gpt_oss_rope(header),
        }
    return config


def expert_shapes(config: Mapping[str, Any], *, apart: bool = False) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's router and experts.

    Args:
        apart: each expert has tensors of its own.
    """
    count = int(config.get("num_experts") or config["num_local_experts"])
    hidden, inner = int(config["hidden_size"]), int(config.get("moe_intermediate_size") or config["intermediate_size"])
    router: dict[str, tuple[int, ...]] = {"ffn_gate_inp": (count, hidden)}
    expert = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    if apart:
        return router | {f"ffn_{name}.{each}": shape for each in range(count) for name, shape in expert.items()}
    return router | {f"ffn_{name}_exps": (count, *shape) for name, shape in expert.items()}


def experts_apart(names: Collection[str]) -> bool:
    """Whether a file has tensors of these names for each expert, not for all of a layer."""
    return any(name.endswith(".ffn_gate.0.weight") for name in names)


def _gpt_oss_rope(header: GgufHeader) -> dict[str, Any]:
    """YaRN, whose ramp transformers does not round to whole pairs for gpt-oss."""
    return {
        "rope_type": "yarn",
        "rope_theta": header.real("gpt-oss.rope.freq_base") or 150000.0,
        "factor": header.real("gpt-oss.rope.scaling.factor") or 1.0,
        "original_max_position_embeddings": header.integer("gpt-oss.rope.scaling.original_context_length")
        or _GPT_OSS_CONTEXT,
        "beta_fast": header.real("gpt-oss.rope.scaling.yarn_beta_fast") or 32.0,
        "beta_slow": header.real("gpt-oss.rope.scaling.yarn_beta_slow") or 1.0,
        "truncate": False,
    }
