"""Which targets can be served: the Llama, Qwen2 and Qwen3 families with full attention.

Pure: works on the raw `config.json`. Invariant: a configuration that passes is computed exactly by the target adapter;
what would be computed wrongly (sliding windows, position scaling that depends on how the text was cut) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_shared.errors import ModelSourceError

FAMILIES = ("llama", "qwen2", "qwen3")
MOST_LAYERS = 1024  # the largest models have 126; a file that names a billion would be looked through for hours
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_family(config: Mapping[str, Any], name: str) -> None:
    """Refuse what the target adapter does not compute exactly.

    Args:
        config: the content of `config.json`.
        name: what to call the model in messages.

    Raises:
        ModelSourceError: another family, a sliding window, a rope that changes with the length, or missing sizes.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelSourceError(
            f"{name} is of the model family {family!r}, which moa does not serve.",
            hint=f"Choose a model of one of the families {', '.join(FAMILIES)}.",
        )
    for size in _SIZES:
        value = config.get(size)
        if not isinstance(value, int) or value <= 0:
            raise ModelSourceError(
                f"The config.json of {name} has {size} = {value!r}, expected a positive integer.",
                hint="Fetch the model again.",
            )
    if config["num_hidden_layers"] > MOST_LAYERS:
        raise ModelSourceError(
            f"The config.json of {name} has {config['num_hidden_layers']} layers, at most {MOST_LAYERS} are served.",
            hint="Fetch the model again.",
        )
    layer_types = config.get("layer_types") or []
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(layer_types, list) or not isinstance(rope, Mapping) or any(map(_is_nested, rope.values())):
        raise ModelSourceError(
            f"The config.json of {name} has layer_types or rotary parameters that make no sense.",
            hint="Fetch the model again.",
        )
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ModelSourceError(
            f"{name} uses sliding-window attention, which moa does not support.",
            hint="Choose a model whose config.json has use_sliding_window false and only full_attention layers.",
        )
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type in _LENGTH_DEPENDENT_ROPE:
        raise ModelSourceError(
            f"{name} uses {rope_type!r} rotary scaling, under which cached keys depend on how long the text became.",
            hint="Choose a model with default, linear, yarn or llama3 rotary scaling.",
        )


def _is_nested(value: object) -> bool:
    """Whether a rotary parameter is more than a number, a name, or a list of such."""
    entries = value if isinstance(value, list) else [value]
    return any(isinstance(entry, list | Mapping) for entry in entries)
