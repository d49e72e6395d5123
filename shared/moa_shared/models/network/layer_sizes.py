"""What layers of one model may differ in: windows, heads, the MLP's width or its experts, whose keys they read. Pure.

The keys are those of config.json. Heads and widths differ in Gemma 4 only. Invariant: what passes `mistake_in_sizes`
and `mistake_in_mixture` has sizes and experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_kernels import Heads
from moa_kernels.transformer.experts import MOST_EXPERTS

from moa_shared.models.families import FAMILIES, Family, Mixture
from moa_shared.models.gguf.keys import FULL, SLIDING

Config = Mapping[str, Any]
_WHOLE_QWEN_LAYERS = 28  # that see all positions, where max_window_layers does not say
_BY_LAYER = {"head_dim", "num_key_value_heads"}  # what `per_layer_config` may say of a layer
_EMBEDDING = "hidden_size_per_layer_input"


@dataclass(frozen=True, slots=True)
class LayerSizes:
    heads: Heads  # of its keys and values
    inner: int  # width of its MLP
    reads_layer: int | None = None  # the earlier layer whose keys and values it reads; None: it has its own
    keys_are_values: bool = False  # values are the keys, before their norm and turn


def with_defaults(config: Config, family: Family) -> dict[str, Any]:
    """A config.json with what its family lets it leave out."""
    return {**family.defaults, **{key: value for key, value in config.items() if value is not None}}


def layer_kinds(config: Config, family: Family) -> list[str]:
    """Which layers see a window. `config`: with the family's defaults."""
    count, every = int(config["num_hidden_layers"]), family.window_every
    if config.get("layer_types"):
        kinds = list(config["layer_types"])
    elif config.get("use_sliding_window") and every is None and config.get("sliding_window"):  # Qwen's keys
        first = 0 if family.mixture is not None else int(config.get("max_window_layers", _WHOLE_QWEN_LAYERS))
        return [SLIDING if layer >= first else FULL for layer in range(count)]
    elif every is None or not config.get("sliding_window"):
        return [FULL] * count
    else:
        every = int(config.get("sliding_window_pattern", every))
        kinds = [SLIDING if not every or layer % every else FULL for layer in range(1, count + 1)]
    if family.layers_differ:  # as transformers has it, whatever the configuration says
        kinds[-1] = FULL
    return kinds


def sizes_of(config: Config, family: Family, kinds: Sequence[str]) -> list[LayerSizes]:
    """The sizes of all layers. `config`: with the family's defaults. `kinds`: of `layer_kinds`."""
    heads, inner = int(config["num_attention_heads"]), int(config.get("intermediate_size") or 0)
    count = int(config.get("num_key_value_heads") or heads)
    usual = Heads(count, int(config.get("head_dim") or int(config["hidden_size"]) // heads))
    if not family.layers_differ:
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


def _all_sizes(config: Config, family: Family) -> list[LayerSizes]:
    config = with_defaults(config, family)
    return sizes_of(config, family, layer_kinds(config, family))


def cached_heads(config: Config) -> list[Heads]:
    """The heads of each layer that has keys and values of its own: what a cache of a served model keeps."""
    family = FAMILIES[str(config.get("model_type") or "llama")]
    return [each.heads for each in _all_sizes(config, family) if each.reads_layer is None]


def kv_width(config: Config) -> int:
    return max(heads.width for heads in cached_heads(config))


def kv_width_if_differing(config: Config) -> int:
    """`kv_width` where layers differ in it; 0: all have that of the heads that config.json names."""
    return kv_width(config) if FAMILIES[str(config.get("model_type") or "llama")].layers_differ else 0


def unread_tensors(config: Config) -> frozenset[str]:
    """What files may have of layers that read the keys and values of others, though nothing computes with it."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None or not family.layers_differ:
        return frozenset()
    return frozenset(
        f"model.layers.{layer}.self_attn.{module}.weight"
        for layer, each in enumerate(_all_sizes(config, family))
        if each.reads_layer is not None
        for module in ("k_proj", "v_proj", "k_norm")
    )


def embedding_width(config: Config, family: Family) -> int:
    """The width of the layers' own embeddings; 0: they have none. `config`: as its file has it."""
    default = 256 if config.get("model_type") == "gemma4_text" else 0  # where config.json does not have the key
    return int(config.get(_EMBEDDING, default) or 0) if family.layers_differ else 0


def mistake_in_sizes(config: Config, family: Family, most_size: int) -> str | None:
    """What makes no sense of what layers differ in, or is not computed, in a config.json; None: nothing."""
    if not family.layers_differ:
        return None
    width = embedding_width(config, family) if type(config.get(_EMBEDDING, 0)) in (int, type(None)) else -1
    config = with_defaults(config, family)
    count, vocabulary = int(config["num_hidden_layers"]), config["vocab_size"]
    for key in ("global_head_dim", "num_global_key_value_heads", "vocab_size_per_layer_input"):
        value = config.get(key, 2)
        if type(value) is not int or not 0 < value <= most_size:
            return f"{key} = {value!r}"
    for key in ("attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block"):
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
    kinds, shared = layer_kinds(config, family), config.get("num_kv_shared_layers", 0)
    if (
        type(shared) is not int
        or not 0 <= shared < count
        or set(kinds[count - shared :]) - set(kinds[: count - shared])
    ):
        return f"num_kv_shared_layers = {shared!r} for the layers {kinds}"
    sizes, heads = sizes_of(config, family, kinds), int(config["num_attention_heads"])
    for layer, each in enumerate(sizes):
        if heads % each.heads.number or each.heads.dim % 2:
            return f"{heads} query heads over {each.heads.number} heads of {each.heads.dim} numbers in layer {layer}"
        if each.reads_layer is not None and sizes[each.reads_layer].heads != each.heads:
            return f"layer {layer}, which reads keys and values of layer {each.reads_layer}, whose heads differ"
    return None


def _is_by_layer(value: object, layers: int, most_size: int) -> bool:
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


@dataclass(frozen=True, slots=True)
class MixturePlan:
    count: int  # how many there are
    inner: int  # the width of each
    chosen: int  # how many a row has
    weighs_all: bool  # weights are a softmax over all scores, else over those of the chosen
    beside: bool = False  # an MLP stands beside them


def mixture_of(config: Config, family: Family, layer: int) -> MixturePlan | None:
    """The plan of a layer's experts, by a configuration with defaults; None: it has an MLP like dense models."""
    mixture = family.mixture
    if mixture is None or not is_on(config, mixture):
        return None
    if layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % int(config.get("decoder_sparse_step") or 1):
        return None
    weighs_all = not (mixture.weighs_chosen or config.get("norm_topk_prob"))
    count, chosen = int(config[_count_key(config)]), int(config[mixture.chosen])
    return MixturePlan(count, int(config[mixture.inner]), chosen, weighs_all, mixture.beside)


def is_on(config: Config, mixture: Mixture) -> bool:
    return not mixture.switch or bool(config.get(mixture.switch))


def mistake_in_mixture(config: Config, family: Family, most_size: int) -> str | None:
    """What makes no sense of experts, or is not computed, in a config.json; None: nothing."""
    mixture = family.mixture
    if mixture is None or not is_on(config, mixture):
        return None
    config = {**family.defaults, **config}
    count_key = _count_key(config)
    most = MOST_EXPERTS
    for key in (count_key, mixture.chosen, mixture.inner, "decoder_sparse_step"):
        value = config.get(key, 1 if key == "decoder_sparse_step" else None)
        if type(value) is not int or not 0 < value <= most:
            return f"{key} = {value!r}, expected a whole number from 1 to {most}"
        most = value if key == count_key else most_size
    dense = config.get("mlp_only_layers")
    if dense is not None and (not isinstance(dense, list) or any(type(layer) is not int for layer in dense)):
        return f"mlp_only_layers = {dense!r}"
    for key in ("clip_qkv", "swiglu_alpha", "swiglu_limit"):
        value = config.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 < value < 1e6):
            return f"{key} = {value!r}"
    return None


def _count_key(config: Config) -> str:
    return next((key for key in ("num_experts", "num_local_experts") if config.get(key) is not None), "num_experts")
