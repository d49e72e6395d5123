"""What layers of one model may differ in: heads, width of the MLP, and whose keys and values they read. Pure.

Only Gemma 4's differ; the keys are those of its config.json. Invariant: what passes `mistake_in_sizes` has sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_kernels import Heads

from moa_shared.models.network.description import FAMILIES, Description

SLIDING, FULL = "sliding_attention", "full_attention"
_WHOLE_QWEN_LAYERS = 28  # that see all positions, where max_window_layers does not say
_BY_LAYER = {"head_dim", "num_key_value_heads"}  # what `per_layer_config` may say of a layer
_SWITCHES = ("attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block")
_EMBEDDING = "hidden_size_per_layer_input"
_EMBEDDING_DEFAULTS = {"gemma4_text": 256}  # where config.json does not have the key


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """One layer's.

    Args:
        heads: of its keys and values.
        inner: width of its MLP.
        reads_layer: the earlier layer whose keys and values it reads; None: it has its own.
        keys_are_values: values are the keys, before their norm and turn.
    """

    heads: Heads
    inner: int
    reads_layer: int | None = None
    keys_are_values: bool = False


def layer_kinds(config: Mapping[str, Any], description: Description) -> list[str]:
    """Which layers see a window.

    Args:
        config: with the family's defaults.
    """
    count, every = int(config["num_hidden_layers"]), description.window_every
    if config.get("layer_types"):
        kinds = list(config["layer_types"])
    elif config.get("use_sliding_window") and every is None and config.get("sliding_window"):  # Qwen's keys
        first = 0 if description.mixture is not None else int(config.get("max_window_layers", _WHOLE_QWEN_LAYERS))
        return [SLIDING if layer >= first else FULL for layer in range(count)]
    elif every is None or not config.get("sliding_window"):
        return [FULL] * count
    else:
        every = int(config.get("sliding_window_pattern", every))
        kinds = [SLIDING if not every or layer % every else FULL for layer in range(1, count + 1)]
    if description.layers_differ:  # as transformers has it, whatever the configuration says
        kinds[-1] = FULL
    return kinds


def sizes_of(config: Mapping[str, Any], description: Description, kinds: Sequence[str]) -> list[LayerSizes]:
    """The sizes of all layers.

    Args:
        config: with the family's defaults.
        kinds: of `layer_kinds`.
    """
    heads, inner = int(config["num_attention_heads"]), int(config.get("intermediate_size") or 0)
    count = int(config.get("num_key_value_heads") or heads)
    usual = Heads(count, int(config.get("head_dim") or int(config["hidden_size"]) // heads))
    if not description.layers_differ:
        return [LayerSizes(usual, inner)] * len(kinds)
    same, shared = bool(config.get("attention_k_eq_v")), int(config.get("num_kv_shared_layers") or 0)
    whole = Heads(
        int(config.get("num_global_key_value_heads") or count) if same else count, int(config["global_head_dim"])
    )
    by_layer: Mapping[str, Mapping[str, int]] | None = config.get("per_layer_config")
    first = len(kinds) - shared
    sizes = []
    for layer, kind in enumerate(kinds):
        own = whole if kind == FULL else usual
        if by_layer is not None:
            said = by_layer.get(str(layer), {})
            own = Heads(said.get("num_key_value_heads", count), said.get("head_dim", usual.dim))
        if layer < first:
            sizes.append(LayerSizes(own, inner, keys_are_values=same and kind == FULL))
            continue
        source = max(earlier for earlier in range(first) if kinds[earlier] == kind)
        sizes.append(LayerSizes(own, 2 * inner if config.get("use_double_wide_mlp") else inner, source))
    return sizes


def whole_rotary(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' `rope_parameters`; where kinds of layers have their own, of those that see everything."""
    return dict(parameters.get(FULL, parameters))


def cached_heads(config: Mapping[str, Any]) -> list[Heads]:
    """The heads of each layer that has keys and values of its own: what a cache of the model keeps.

    Args:
        config: the content of config.json, of a family that is served.
    """
    description = FAMILIES[str(config.get("model_type") or "llama")]
    config = with_defaults(config, description)
    sizes = sizes_of(config, description, layer_kinds(config, description))
    return [each.heads for each in sizes if each.reads_layer is None]


def kv_width(config: Mapping[str, Any]) -> int:
    """Numbers of one token's keys and values in the widest layer."""
    return max(heads.width for heads in cached_heads(config))


def unread_tensors(config: Mapping[str, Any]) -> frozenset[str]:
    """What files may have of layers that read the keys and values of others, though nothing computes with it."""
    description = FAMILIES.get(str(config.get("model_type")))
    if description is None or not description.layers_differ:
        return frozenset()
    config = with_defaults(config, description)
    sizes = sizes_of(config, description, layer_kinds(config, description))
    return frozenset(
        f"model.layers.{layer}.self_attn.{module}.weight"
        for layer, each in enumerate(sizes)
        if each.reads_layer is not None
        for module in ("k_proj", "v_proj", "k_norm")
    )


def kv_width_if_differing(config: Mapping[str, Any]) -> int:
    """`kv_width` where layers differ in it; 0: all have that of the heads that config.json names."""
    description = FAMILIES[str(config.get("model_type") or "llama")]
    return kv_width(config) if description.layers_differ else 0


def with_defaults(config: Mapping[str, Any], description: Description) -> dict[str, Any]:
    """A config.json with what its family lets it leave out."""
    return {**description.defaults, **{key: value for key, value in config.items() if value is not None}}


def embedding_width(config: Mapping[str, Any], description: Description) -> int:
    """The width of the layers' own embeddings; 0: they have none.

    Args:
        config: as its file has it.
    """
    default = _EMBEDDING_DEFAULTS.get(str(config.get("model_type")), 0)
    return int(config.get(_EMBEDDING, default) or 0) if description.layers_differ else 0


def mistake_in_sizes(config: Mapping[str, Any], description: Description, most_size: int) -> str | None:
    """What makes no sense of what layers differ in, or is not computed; None: nothing.

    Args:
        config: as its file has it, with layer types and sizes that make sense.
    """
    if not description.layers_differ:
        return None
    width = embedding_width(config, description) if type(config.get(_EMBEDDING, 0)) in (int, type(None)) else -1
    config = with_defaults(config, description)
    count, vocabulary = int(config["num_hidden_layers"]), config["vocab_size"]
    for key in ("global_head_dim", "num_global_key_value_heads", "vocab_size_per_layer_input"):
        value = config.get(key, 2)
        if type(value) is not int or not 0 < value <= most_size:
            return f"{key} = {value!r}"
    for key in _SWITCHES:
        if not isinstance(config.get(key, False), bool):
            return f"{key} = {config[key]!r}"
    if config.get("attn_logit_softcapping"):  # which transformers does not compute either
        return f"attn_logit_softcapping = {config['attn_logit_softcapping']!r}"
    if not 0 <= width <= most_size:
        return f"{_EMBEDDING} = {config[_EMBEDDING]!r}"
    if width and config.get("vocab_size_per_layer_input", vocabulary) < vocabulary:
        return f"embeddings by layer for {config['vocab_size_per_layer_input']} of {vocabulary} tokens"
    by_layer = config.get("per_layer_config")
    if by_layer is not None and not _is_by_layer(by_layer, count, most_size):
        return f"per_layer_config = {by_layer!r}"
    kinds, shared = layer_kinds(config, description), config.get("num_kv_shared_layers", 0)
    if (
        type(shared) is not int
        or not 0 <= shared < count
        or set(kinds[count - shared :]) - set(kinds[: count - shared])
    ):
        return f"num_kv_shared_layers = {shared!r} for the layers {kinds}"
    sizes, heads = sizes_of(config, description, kinds), int(config["num_attention_heads"])
    for layer, each in enumerate(sizes):
        if heads % each.heads.number or each.heads.dim % 2:
            return f"{heads} query heads over {each.heads.number} heads of {each.heads.dim} numbers in layer {layer}"
        if each.reads_layer is not None and sizes[each.reads_layer].heads != each.heads:
            return f"layer {layer}, which reads keys and values of layer {each.reads_layer}, whose heads differ"
    return None


def _is_by_layer(value: object, layers: int, most_size: int) -> bool:
    """Whether `per_layer_config` says no more than the heads of layers that are there."""
    if not isinstance(value, Mapping):
        return False
    numbers = {str(layer) for layer in range(layers)}
    return all(
        number in numbers
        and isinstance(said, Mapping)
        and said.keys() <= _BY_LAYER
        and all(type(size) is int and 0 < size <= most_size for size in said.values())
        for number, said in value.items()
    )
