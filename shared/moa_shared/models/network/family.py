"""Which targets can be served: those of the families that are described, with what their config.json says.

Pure: works on the raw `config.json`. Invariant: a configuration that passes is computed exactly by the target adapter;
what would be computed wrongly (position scaling that depends on how long the text became, say) is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.network.description import EARLIEST, FAMILIES
from moa_shared.models.network.layer_sizes import FULL, SLIDING, mistake_in_sizes
from moa_shared.models.network.mixture import mistake_in
from moa_shared.text.plain_text import plain_line

MOST_LAYERS = 1024  # the largest models have 126; a file that names a billion would be looked through for hours
MOST_SIZE = 1 << 24  # of other sizes: the widest models have a quarter of a million tokens, and MLPs of 53,248 numbers
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")  # absent or null where others say it
_FACTORS = (
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "rope_local_base_freq",
    "rope_theta",
)
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "rms_norm_eps")  # 0: none
_MOST_SHOWN = 80  # characters of a wrong value in a message
_LENGTH_DEPENDENT_ROPE = ("dynamic",)
_QWENS = ("qwen2", "qwen3", "qwen3_moe")  # whose windows are used only where use_sliding_window says so
_LAYER_TYPES = (FULL, SLIDING)


def check_family(config: Mapping[str, Any], name: str) -> None:
    """Refuse what the target adapter does not compute exactly.

    Args:
        config: the content of `config.json`.
        name: what to call the model in messages.

    Raises:
        ModelSourceError: another family, a rope that changes with the length, or what makes no sense.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelSourceError(
            f"{name} is of the model family {family!r}, which moa does not serve.",
            hint=f"Choose a model of one of the families {', '.join(FAMILIES)}.",
        )
    _check_sizes(config, name)
    _check_numbers(config, name)
    layer_types = config.get("layer_types") or []
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer = isinstance(rope, Mapping) and bool(rope) and family not in EARLIEST and set(rope) <= set(_LAYER_TYPES)
    ropes = [each or {} for each in rope.values()] if by_layer else [rope]
    if not isinstance(layer_types, list) or not all(map(_is_rope, ropes)):
        raise _senseless(name)
    _check_layers(config, name)
    rope_type = next((kind for kind in map(_rope_type, ropes) if kind in _LENGTH_DEPENDENT_ROPE), None)
    if rope_type is not None:
        raise ModelSourceError(
            f"{name} uses {rope_type!r} rotary scaling, under which cached keys depend on how long the text became.",
            hint="Choose a model with default, linear, yarn, llama3 or longrope rotary scaling.",
        )


def _senseless(name: str) -> ModelSourceError:
    return ModelSourceError(
        f"The config.json of {name} has layer_types or rotary parameters that make no sense.",
        hint="Fetch the model again.",
    )


def _check_sizes(config: Mapping[str, Any], name: str) -> None:
    """Refuses sizes that a network cannot have: layers are allocated by them, and heads divided."""
    for size in (*_SIZES, *_OPTIONAL_SIZES):
        value = config.get(size)
        if value is None and size in _OPTIONAL_SIZES:
            continue
        most = MOST_LAYERS if size == "num_hidden_layers" else MOST_SIZE
        if type(value) is not int or not 0 < value <= most:
            raise ModelSourceError(
                f"The config.json of {name} has {size} = {plain_line(repr(value), _MOST_SHOWN)},"
                f" expected a whole number from 1 to {most}.",
                hint="Fetch the model again.",
            )
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads, head_dim = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    if heads % kv_heads or not head_dim or head_dim % 2:
        raise ModelSourceError(
            f"The config.json of {name} has {heads} query heads over {kv_heads} key/value heads of {head_dim} numbers,"
            " which is no network.",
            hint="Fetch the model again.",
        )


def _check_numbers(config: Mapping[str, Any], name: str) -> None:
    """Refuses scalings that are no numbers."""
    for key in (*_FACTORS, *_CAPS):
        value = config.get(key)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        if not is_number or (value == 0 and key in _FACTORS):
            raise ModelSourceError(
                f"The config.json of {name} has {key} = {plain_line(repr(value), _MOST_SHOWN)}, expected a number"
                f" {'above 0' if key in _FACTORS else 'of at least 0'}.",
                hint="Fetch the model again.",
            )


def _check_layers(config: Mapping[str, Any], name: str) -> None:
    """Refuses windows, kinds of layers and lists by layer that make no sense, and what is not computed."""
    count, kinds, turned = config["num_hidden_layers"], config.get("layer_types"), config.get("no_rope_layers")
    family = str(config["model_type"])
    window = config.get("sliding_window")
    wrong = None
    if kinds and (len(kinds) != count or any(kind not in _LAYER_TYPES for kind in kinds)):
        wrong = f"layer_types = {kinds} for {count} layers"
    elif turned and (
        not isinstance(turned, list) or len(turned) != count or any(each not in (0, 1) for each in turned)
    ):
        wrong = f"no_rope_layers = {turned} for {count} layers"
    elif window is not None and (type(window) is not int or not 0 < window <= MOST_SIZE):
        wrong = f"sliding_window = {window!r}"
    elif window is None and _LAYER_TYPES[1] in (kinds or ()):
        wrong = "layers with a sliding window, and no size of it"
    for key in ("sliding_window_pattern", "no_rope_layer_interval"):
        value = config.get(key)
        if value is not None and (type(value) is not int or value < 1):
            wrong = f"{key} = {value!r}"
    if family in _QWENS and config.get("use_sliding_window"):
        first = config.get("max_window_layers", 0)
        if type(first) is not int or first < 0:
            wrong = f"max_window_layers = {first!r}"
        elif "sliding_window" not in config:
            wrong = "use_sliding_window, and no sliding_window"
    elif family in EARLIEST and SLIDING in (kinds or ()):
        wrong = "layers with a sliding window, which its family does not have or it does not use"
    description = FAMILIES[family]
    wrong = mistake_in(config, description, MOST_SIZE) or wrong or mistake_in_sizes(config, description, MOST_SIZE)
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):  # of texts, that is none
        wrong = "bidirectional attention, which writes no text"
    if wrong is not None:
        raise ModelSourceError(
            f"The config.json of {name} has {plain_line(wrong, 2 * _MOST_SHOWN)}, which moa does not compute.",
            hint="Fetch the model again, or choose another.",
        )


def _rope_type(rope: Mapping[str, Any]) -> object:
    return rope.get("rope_type", rope.get("type", "default"))


def _is_rope(value: object) -> bool:
    return isinstance(value, Mapping) and not any(map(_is_nested, value.values()))


def _is_nested(value: object) -> bool:
    """Whether a rotary parameter is more than a number, a name, or a list of such."""
    entries = value if isinstance(value, list) else [value]
    return any(isinstance(entry, list | Mapping) for entry in entries)
