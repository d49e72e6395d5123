"""What llama.cpp calls the families that are served, and what a file or llama.cpp's code says of each besides sizes.

Pure over the header. Sources: llama.cpp's converter and `src/models`; which layers see a window is often in its code
only. Invariant: the keys and values are those that transformers gives the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.experts import ARCHITECTURES, mixture_config
from moa_shared.models.gguf.gemma4 import gemma4_config
from moa_shared.models.gguf.header import GgufHeader
from moa_shared.models.gguf.rope import rope_theta
from moa_shared.models.network.family import MOST_LAYERS

_FULL, _SLIDING = "full_attention", "sliding_attention"
_GELU = "gelu_pytorch_tanh"
_27B_LAYERS = {"gemma2": 46, "gemma3": 62}  # whose scores are scaled by a head's share of the hidden size (llama.cpp)


def require_family(header: GgufHeader) -> None:
    """Refuses what is not read from GGUF.

    Raises:
        ModelSourceError: another family.
    """
    if header.architecture not in FAMILIES:
        raise ModelSourceError(
            f"{header.path} is of the model family {header.architecture!r}, which moa does not read from GGUF.",
            hint=f"Choose a model of one of the families {', '.join(FAMILIES)}.",
        )


def of_its_family(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the config.json of the file's family has besides what all have.

    Args:
        config: what all have.

    Raises:
        ModelSourceError: keys that make no sense.
    """
    return FAMILIES[header.architecture](header, config)


def _plain(family: str, model_class: str) -> Callable[[GgufHeader, Mapping[str, Any]], dict[str, Any]]:
    return lambda header, config: _named(family, model_class)


def _named(family: str, model_class: str) -> dict[str, Any]:
    return {"model_type": family, "architectures": [f"{model_class}ForCausalLM"]}


def _llama(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    return mixture_config(header) or _named("llama", "Llama")  # with experts it is a Mixtral


def _mistral3(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    """Ministral 3, whose queries grow with their position; Mistral Small 3 without that."""
    slope = header.positive("mistral3.attention.temperature_scale")
    if not slope:
        return _named("mistral", "Mistral") | {"sliding_window": None}
    original = header.required("mistral3.rope.scaling.original_context_length")
    scaling = {"llama_4_scaling_beta": slope, "original_max_position_embeddings": original}
    return _named("ministral3", "Ministral3") | {"rope_parameters": config["rope_parameters"] | scaling}


def _gemma2(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    return (
        _named("gemma2", "Gemma2")
        | _gemma(header, config)
        | {
            "attn_logit_softcapping": header.positive("gemma2.attn_logit_softcapping") or 50.0,
            "final_logit_softcapping": header.positive("gemma2.final_logit_softcapping") or 30.0,
            "sliding_window": _window(header) or 4096,
            "layer_types": _layer_types(header, config, 2),
        }
    )


def _gemma3(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    window = _window(header)
    return (
        _named("gemma3_text", "Gemma3")
        | _gemma(header, config)
        | {
            "final_logit_softcapping": header.positive("gemma3.final_logit_softcapping"),
            "sliding_window": window or 4096,
            "layer_types": _layer_types(header, config, 6 if window else 1),
            "rope_parameters": _by_layer(config, rope_theta(header, "_swa")),
        }
    )


def _gemma(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    largest = config["num_hidden_layers"] == _27B_LAYERS[header.architecture] and heads > 0
    scalar = config["hidden_size"] // heads if largest else head_dim
    return {"hidden_act": _GELU, "hidden_activation": _GELU, "query_pre_attn_scalar": scalar}


def _phi3(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    """Phi-3 and Phi-4; llama.cpp ignores their window, transformers does not."""
    original = header.integer("phi3.rope.scaling.original_context_length")
    return _named("phi3", "Phi3") | {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "partial_rotary_factor": config["rope_parameters"].get("partial_rotary_factor", 1.0),
        "sliding_window": _window(header) or None,
    }


def _olmo2(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    """OLMo 2, and OLMo 3, whose layers with a window are turned without scaling."""
    window = _window(header)
    if not window:
        return _named("olmo2", "Olmo2")
    theta = header.positive("olmo2.rope.freq_base_swa") or rope_theta(header)
    return _named("olmo3", "Olmo3") | {
        "sliding_window": window,
        "layer_types": _layer_types(header, config, 4),
        "rope_parameters": _by_layer(config, theta),
    }


def _granite(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any]:
    if header.flag("granite.rope.scaling.finetuned") is False:
        raise ModelSourceError(
            f"{header.path} is a Granite whose positions are not rotated, which moa does not compute.",
            hint="Choose a Granite 3 model.",
        )
    return _named("granite", "Granite") | {
        "attention_multiplier": header.positive("granite.attention.scale") or config["head_dim"] ** -0.5,
        "embedding_multiplier": header.positive("granite.embedding_scale") or 1.0,
        "residual_multiplier": header.positive("granite.residual_scale") or 1.0,
        "logits_scaling": header.positive("granite.logit_scale") or 1.0,
    }


FAMILIES: Mapping[str, Callable[[GgufHeader, Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _plain("qwen2", "Qwen2"),
    "qwen3": _plain("qwen3", "Qwen3"),
    "mistral3": _mistral3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": gemma4_config,
    "phi3": _phi3,
    "smollm3": _plain("smollm3", "SmolLM3"),
    "olmo2": _olmo2,
    "granite": _granite,
    **dict.fromkeys(ARCHITECTURES, lambda header, config: mixture_config(header)),
}


def _window(header: GgufHeader) -> int:
    return header.integer(f"{header.architecture}.attention.sliding_window") or 0


def _layer_types(header: GgufHeader, config: Mapping[str, Any], every: int) -> list[str]:
    """Each layer's kind: as the file has it (a list, or how many make a period), else the last of `every` sees all."""
    key = f"{header.architecture}.attention.sliding_window_pattern"
    said = header.metadata.get(key)
    if isinstance(said, list):
        return [_SLIDING if each else _FULL for each in said]
    every = header.integer(key) or every
    count = min(config["num_hidden_layers"], MOST_LAYERS)  # more are refused later
    return [_SLIDING if layer % every else _FULL for layer in range(1, count + 1)]


def _by_layer(config: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Rotary parameters where layers with a window have their own."""
    return {_FULL: config["rope_parameters"], _SLIDING: {"rope_theta": theta, "rope_type": "default"}}
