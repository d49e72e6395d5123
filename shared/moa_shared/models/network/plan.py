"""What a model computes besides its weights, from its config.json: sizes, angles, windows, experts, scalings. Pure.

Layers of one model may differ in windows and experts, those of Gemma 4 in heads and widths too. Invariant: a
configuration that is served (served.py) and gives a plan is computed exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import Heads, KernelError, Rotary, StackShape, StateShape, cap
from moa_kernels.blocks import Rows

from moa_shared.models.network.families import FAMILIES, Family, Mixture
from moa_shared.models.storage.gguf_keys import FULL, LINEAR, SLIDING, TILED, Config

EMBEDDING = "hidden_size_per_layer_input"


@dataclass(frozen=True, slots=True)
class LayerSizes:
    heads: Heads  # of its keys and values
    inner: int  # width of its MLP
    reads_layer: int | None = None  # the earlier layer whose keys and values it reads; None: it has its own
    keys_are_values: bool = False  # values are the keys, before their norm and turn


def with_defaults(config: Config, family: Family) -> dict[str, Any]:
    return {**family.defaults, **{key: value for key, value in config.items() if value is not None}}


def layer_kinds(config: Config, family: Family) -> list[str]:
    """Which layers see a window, or have a gated delta net. `config`: with the family's defaults."""
    count, every = int(config["num_hidden_layers"]), family.window_every
    if config.get("layer_types"):
        kinds = list(config["layer_types"])
    elif family.delta_nets is not None:
        step = int(config.get("full_attention_interval", 4))
        kinds = [LINEAR if layer % step else FULL for layer in range(1, count + 1)]
        return kinds if FULL in kinds or config.get("model_type") != "olmo_hybrid" else [*kinds[:-1], FULL]
    elif config.get("use_sliding_window") and every is None and config.get("sliding_window"):  # Qwen's keys
        first = 0 if family.mixture is not None else int(config.get("max_window_layers", 28))
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


def layers_of(config: Config) -> list[tuple[str, LayerSizes]]:
    """The kind and the sizes of each layer."""
    family = FAMILIES[str(config.get("model_type") or "llama")]
    config = with_defaults(config, family)
    kinds = layer_kinds(config, family)
    return list(zip(kinds, sizes_of(config, family, kinds), strict=True))


def cached_heads(config: Config) -> list[Heads]:
    """The heads of each layer that has keys and values of its own: what a cache of a served model keeps."""
    return [each.heads for kind, each in layers_of(config) if each.reads_layer is None and kind != LINEAR]


def state_shapes(config: Config) -> list[StateShape]:
    """The state of each layer that has one in place of keys and values."""
    whole = with_defaults(config, FAMILIES[str(config.get("model_type") or "llama")])
    return [state_shape(whole) for kind, _ in layers_of(config) if kind == LINEAR]


def state_shape(config: Config) -> StateShape:
    """`config`: with the family's defaults."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    key_heads = int(config.get("linear_num_key_heads") or heads)
    key_dim = int(config.get("linear_key_head_dim") or 0.75 * hidden / key_heads)  # OLMo's default
    return StateShape(
        heads=int(config.get("linear_num_value_heads") or heads),
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=int(config.get("linear_value_head_dim") or 2 * key_dim),
        taps=int(config["linear_conv_kernel_dim"]),
        tiled=bool(config.get(TILED)),
    )


def kv_width(config: Config) -> int:
    return max(heads.width for heads in cached_heads(config))


def unread_tensors(config: Config) -> frozenset[str]:
    """What files may have of layers that read the keys and values of others, though nothing computes with it."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None or not family.layers_differ:
        return frozenset()
    readers = [layer for layer, (_, each) in enumerate(layers_of(config)) if each.reads_layer is not None]
    modules = ("k_proj", "v_proj", "k_norm")
    return frozenset(f"model.layers.{layer}.self_attn.{module}.weight" for layer in readers for module in modules)


RowOrders = Mapping[str, Mapping[str, npt.NDArray[np.int64]]]


def row_orders(config: Config) -> RowOrders:
    """The rows of each part of matrices whose parts lie in turn, by names within attention or a delta net."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None or not family.output_gate:
        return {}
    config = with_defaults(config, family)
    heads, dim, state = int(config["num_attention_heads"]), int(config["head_dim"]), state_shape(config)
    queries, gates = np.arange(2 * heads * dim).reshape(heads, 2, dim).swapaxes(0, 1)
    each, keys, values = state.heads // state.key_heads, state.key_dim, state.heads // state.key_heads * state.value_dim
    of_heads = np.arange(2 * state.key_heads * (keys + values)).reshape(state.key_heads, -1)
    split = np.split(of_heads, [keys, 2 * keys, 2 * keys + values], axis=1)
    beta, decay = np.split(np.arange(2 * state.heads).reshape(state.key_heads, -1), [each], axis=1)
    return {
        "q_proj.weight": {"gated_q_proj.weight": np.concatenate((queries.ravel(), gates.ravel()))},
        "in_proj_qkvz.weight": {
            "in_proj_qkv.weight": np.concatenate([part.ravel() for part in split[:3]]),
            "in_proj_z.weight": split[3].ravel(),
        },
        "in_proj_ba.weight": {"in_proj_b.weight": beta.ravel(), "in_proj_a.weight": decay.ravel()},
    }


def embedding_width(config: Config, family: Family) -> int:
    """The width of the layers' own embeddings; 0: they have none. `config`: as its file has it."""
    default = 256 if config.get("model_type") == "gemma4_text" else 0  # where config.json does not have the key
    return int(config.get(EMBEDDING, default) or 0) if family.layers_differ else 0


@dataclass(frozen=True, slots=True)
class MixturePlan:
    count: int  # how many there are
    inner: int  # the width of each
    chosen: int  # how many a row has
    weighs_all: bool  # weights are a softmax over all scores, else over those of the chosen
    beside: bool = False  # an MLP stands beside them
    shared: int = 0  # width of an expert that all rows have; 0: there is none


def mixture_of(config: Config, family: Family, layer: int) -> MixturePlan | None:
    """The plan of a layer's experts; None: it has an MLP like dense models. `config`: with the family's defaults."""
    mixture = family.mixture
    if mixture is None or not is_on(config, mixture):
        return None
    if layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % int(config.get("decoder_sparse_step") or 1):
        return None
    weighs_all = not (mixture.weighs_chosen or config.get("norm_topk_prob"))
    count, chosen = int(config[count_key(config)]), int(config[mixture.chosen])
    shared = int(config[mixture.shared]) if mixture.shared else 0
    return MixturePlan(count, int(config[mixture.inner]), chosen, weighs_all, mixture.beside, shared)


def is_on(config: Config, mixture: Mixture) -> bool:
    return not mixture.switch or bool(config.get(mixture.switch))


def count_key(config: Config) -> str:
    return next((key for key in ("num_experts", "num_local_experts") if config.get(key) is not None), "num_experts")


Kind = tuple[str, int]  # of a layer's angles: whether it sees a window, and the numbers of a head


@dataclass(frozen=True, slots=True)
class DeltaNetPlan:
    state: StateShape
    eps: float  # of the norm of what is read
    beta_scale: float  # 2: betas reach 2


@dataclass(frozen=True, slots=True)
class LayerPlan:
    window: int = 0  # how many positions it sees; 0: all
    rotary: int | None = 0  # which of the plan's angles turn it; None: none
    mixture: MixturePlan | None = None
    sizes: LayerSizes | None = None  # what it has of its own; None: those of the plan's shape
    embeds: bool = False  # it adds an embedding of its own
    delta_net: DeltaNetPlan | None = None  # in place of attention


@dataclass(frozen=True, slots=True)
class Plan:
    family: Family
    shape: StackShape
    rotaries: tuple[Rotary, ...]
    layers: tuple[LayerPlan, ...]  # one for each
    embedding_scale: float = 1.0  # of what enters the first layer
    logits_scale: float = 1.0  # of the head's output
    logits_cap: float = 0.0  # logits become cap tanh(logit / cap); 0: they stay

    @property
    def attention_layer(self) -> LayerPlan:
        """The last layer that has no recurrent state."""
        return next(each for each in reversed(self.layers) if each.delta_net is None)

    def why_not_alone(self, first: int) -> str:
        """Why a device cannot run the layers from `first` on from the rows that enter them; empty: it can."""
        for number, layer in enumerate(self.layers[first:], first):
            if layer.embeds:
                return f"layer {number} adds embeddings of its own, whose table stays on the server"
            if layer.delta_net is not None:
                return f"layer {number} has a recurrent state, which holds all rows before a device's first"
            if layer.sizes is not None and layer.sizes.reads_layer is not None:
                return f"layer {number} reads the keys and values of layer {layer.sizes.reads_layer}"
        return ""

    def logits(self, of_head: Rows) -> Rows:
        scaled = of_head * np.float32(self.logits_scale) if self.logits_scale != 1 else of_head
        return cap(scaled, self.logits_cap) if self.logits_cap else scaled


def plan_of(config: Mapping[str, Any], context: int = 0) -> Plan:
    """The plan of a model of a family that is served; KernelError: what the kernels do not compute.

    `context`: the most positions that texts will have (longrope); 0: as many as the model was made for.
    """
    family = FAMILIES[str(config.get("model_type") or "llama")]
    embedding = embedding_width(config, family)
    config = with_defaults(config, family)
    kinds = layer_kinds(config, family)
    sizes = sizes_of(config, family, kinds)
    angles = [(kind, each.heads.dim) for kind, each in zip(kinds, sizes, strict=True)]
    rope = config.get("rope_parameters")
    is_turned = config.get("model_type") != "olmo_hybrid" or not rope or rope.get("rope_theta", 0) is not None
    if not is_turned:
        config["rope_parameters"] = {}
    shape, rotaries = _shape(config, family, embedding), _rotaries(config, angles, context)
    every = int(config.get("no_rope_layer_interval", family.no_rotary_every)) if family.no_rotary_every else 0
    turned = [not every or layer % every > 0 for layer in range(1, int(config["num_hidden_layers"]) + 1)]
    if every and config.get("no_rope_layers"):
        turned = list(map(bool, config["no_rope_layers"]))
    window = int(config["sliding_window"]) if SLIDING in kinds else 0
    delta_net = None
    if (nets := family.delta_nets) is not None:
        beta_scale = 2.0 if config.get(nets.flips) else 1.0
        delta_net = DeltaNetPlan(state_shape(config), nets.eps or shape.eps, beta_scale)
    kind_numbers = {kind: number for number, kind in enumerate(rotaries)}
    layers = tuple(
        LayerPlan(
            window if kind == SLIDING else 0,
            (kind_numbers.get((kind, each.heads.dim), 0) if turns and is_turned and kind != LINEAR else None),
            mixture_of(config, family, layer),
            each if family.layers_differ else None,
            embedding > 0,
            delta_net if kind == LINEAR else None,
        )
        for layer, (kind, turns, each) in enumerate(zip(kinds, turned, sizes, strict=True))
    )
    scale = np.sqrt(np.float32(shape.hidden)) if family.scales_embeddings else config.get("embedding_multiplier", 1.0)
    logits_scale, cap_at = 1.0 / float(config.get("logits_scaling", 1.0)), config.get("final_logit_softcapping", 0.0)
    return Plan(family, shape, tuple(rotaries.values()), layers, float(scale), logits_scale, float(cap_at))


def _shape(config: Mapping[str, Any], family: Family, embedding: int) -> StackShape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    if "rms_norm_eps" not in config:
        raise KernelError("The configuration does not set rms_norm_eps.")
    scale = float(config.get("attention_multiplier", 0.0))
    if family.score_scale:
        scale = family.score_scale
    elif family.scales_embeddings:  # Gemma's key; others that happen to have it mean nothing by it
        scale = float(config["query_pre_attn_scalar"]) ** -0.5
    return StackShape(
        hidden=hidden,
        inner=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        eps=float(config["rms_norm_eps"]),
        activation=family.activation,
        score_scale=scale,
        score_cap=float(config.get("attn_logit_softcapping", 0.0)),
        qkv_clip=float(config.get("clip_qkv", 0.0)) if config.get("model_type") == "olmoe" else 0.0,
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        gate_slope=float(config.get("swiglu_alpha", 1.0)),
        gate_limit=float(config.get("swiglu_limit", 0.0)),
        embedding=embedding,
    )


def _rotaries(config: Mapping[str, Any], kinds: list[Kind], context: int) -> dict[Kind, Rotary]:
    full, sliding = (FULL, kinds[0][1]), (SLIDING, kinds[0][1])
    positions = int(config.get("max_position_embeddings") or 8192)
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = config.get("rope_theta", 10000.0)

    def rotary(own: Mapping[str, Any], base: float, head_dim: int = full[1]) -> Rotary:
        filled = {"rope_theta": base, **own}
        for key in ("original_max_position_embeddings", "partial_rotary_factor"):
            if key in config:
                filled.setdefault(key, config[key])
        if config.get("model_type") == "phi3" and filled.get("rope_type", filled.get("type")) in ("su", "yarn"):
            filled["rope_type"] = "longrope"  # its former names
        return Rotary(head_dim, filled, positions, context)

    if {FULL, SLIDING} & parameters.keys():
        bases = {FULL: theta, SLIDING: config.get("rope_local_base_freq", theta)}
        return {(kind, dim): rotary(parameters.get(kind) or {}, bases[kind], dim) for kind, dim in dict.fromkeys(kinds)}
    if "rope_local_base_freq" in config:
        return {full: rotary(parameters, theta), sliding: rotary({}, config["rope_local_base_freq"])}
    if config.get("model_type") == "olmo3" and sliding in kinds:
        return {full: rotary(parameters, theta), sliding: rotary({}, theta)}
    return {full: rotary(parameters, theta)}
