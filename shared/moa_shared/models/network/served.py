"""Whether a model is served, and on which levels: one answer for lists, plans, examinations and the start of a server.

Pure over the raw `config.json`, but for whether torch is installed. Invariant: what is refused here is refused before
anything is loaded, and what passes is computed exactly, and fails later only for what its weights hold.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
from moa_kernels import KernelError
from moa_kernels.bindings import LANES
from moa_kernels.transformer.layer import GELU_TANH, MOST_EXPERTS, MOST_TAPS

from moa_shared.errors import ModelSourceError
from moa_shared.models.network.families import EARLIEST, FAMILIES, Family
from moa_shared.models.network.plan import (
    EMBEDDING,
    count_key,
    embedding_width,
    is_on,
    layer_kinds,
    plan_of,
    sizes_of,
    state_shape,
    with_defaults,
)
from moa_shared.models.storage.gguf_keys import FULL, LINEAR, MOST_LAYERS, SLIDING, Config
from moa_shared.plain_text import plain_line

_MOST_SIZE = 1 << 24  # of sizes: the widest models have a quarter of a million tokens, and MLPs of 53,248 numbers
_MOST_WIDTH = 1 << 20  # of all heads of a layer side by side: the widest models have 16,384 numbers
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = (  # absent or null where others say it
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window", "sliding_window_pattern"),
    *("no_rope_layer_interval", "global_head_dim", "num_global_key_value_heads", "vocab_size_per_layer_input"),
    *("full_attention_interval", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
    "linear_value_head_dim",
)
_QWENS = ("qwen2", "qwen3", "qwen3_moe")  # whose windows are used only where use_sliding_window says so
_KERNELS = 2 * LANES  # what sizes must be multiples of
_ANOTHER = "Choose another model: `moa-server models` shows which are served."


def check_family(config: Config, name: str) -> None:
    """Refuse a config.json of another family, that makes no sense, or that no level computes exactly.

    `name`: what to call the model in messages.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelSourceError(
            f"{name} is of the model family {family!r}, which moa does not serve.",
            hint=f"Choose a model of one of the families {', '.join(FAMILIES)}.",
        )
    try:
        wrong = _mistake(config, FAMILIES[family])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        wrong = f"values that make no sense ({error})"
    if wrong is not None:
        what = f"The config.json of {name} has {plain_line(wrong, 160)}, which moa does not compute."
        raise ModelSourceError(what, hint="Fetch the model again, or choose another.")


def _mistake(config: Config, family: Family) -> str | None:
    """What is not computed; None: nothing. Layers are allocated by sizes, and heads divided."""
    given = [key for key in _SIZES if key in config or key not in family.defaults]
    given += [key for key in _OPTIONAL_SIZES if config.get(key) is not None]
    if wrong := next(filter(None, (_wrong_size(config, key) for key in given)), None):
        return wrong
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads, head_dim = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    if heads % kv_heads or not head_dim or head_dim % 2 or heads * head_dim > _MOST_WIDTH:
        return f"{heads} query heads over {kv_heads} key/value heads of {head_dim} numbers"
    kinds, name = config.get("layer_types") or [], config["model_type"]
    if any(kind not in (FULL, SLIDING if family.delta_nets is None else LINEAR) for kind in kinds):
        return f"layer_types = {kinds}"
    if name in _QWENS and config.get("use_sliding_window"):
        if "sliding_window" not in config:
            return "use_sliding_window, and no sliding_window"
    elif name in EARLIEST and SLIDING in kinds:
        return "layers with a sliding window, which its family does not have or it does not use"
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):  # of texts, that is none
        return "bidirectional attention, which writes no text"
    wanted = "gelu_pytorch_tanh" if family.activation == GELU_TANH else "silu"
    if (activation := config.get("hidden_activation") or config.get("hidden_act") or wanted) != wanted:
        return f"the activation {activation!r}"
    for key, value in config.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"{key} = {value}"
    if not isinstance(config.get("rope_parameters") or config.get("rope_scaling") or {}, Mapping):
        return "rotary parameters that make no sense"
    mistakes = (_mistake_in_mixture, _mistake_in_sizes, _mistake_in_delta_nets)
    if wrong := next(filter(None, (find(config, family) for find in mistakes)), None):
        return wrong
    with suppress(KernelError), np.errstate(divide="raise", over="raise", invalid="raise"):
        plan_of(config)
    return None


def _wrong_size(config: Config, key: str, most: int = _MOST_SIZE) -> str | None:
    value, most = config.get(key), MOST_LAYERS if key == "num_hidden_layers" else most
    if type(value) is int and 0 < value <= most:
        return None
    return f"{key} = {plain_line(repr(value), 80)}, expected a whole number from 1 to {most}"


def _mistake_in_mixture(config: Config, family: Family) -> str | None:
    mixture = family.mixture
    if mixture is None or not is_on(config, mixture):
        return None
    config = {"decoder_sparse_step": 1, **family.defaults, **config}
    count = count_key(config)
    return (
        _wrong_size(config, count, MOST_EXPERTS)
        or _wrong_size(config, mixture.chosen, config[count])
        or _wrong_size(config, mixture.inner)
        or (_wrong_size(config, mixture.shared) if mixture.shared else None)
        or _wrong_size(config, "decoder_sparse_step")
    )


def _mistake_in_sizes(config: Config, family: Family) -> str | None:
    """Of layers that differ in their sizes."""
    if not family.layers_differ:
        return None
    if not 0 <= (config.get(EMBEDDING) or 0) <= _MOST_SIZE:
        return f"{EMBEDDING} = {config[EMBEDDING]!r}"
    width, config = embedding_width(config, family), with_defaults(config, family)
    vocabulary, heads, shared = (config.get(key, 0) for key in (_SIZES[0], _SIZES[4], "num_kv_shared_layers"))
    if config.get("attn_logit_softcapping"):  # which transformers does not compute either
        return f"attn_logit_softcapping = {config['attn_logit_softcapping']!r}"
    if width and config.get("vocab_size_per_layer_input", vocabulary) < vocabulary:
        return f"embeddings by layer for {config['vocab_size_per_layer_input']} of {vocabulary} tokens"
    if not 0 <= shared < config["num_hidden_layers"]:
        return f"num_kv_shared_layers = {shared!r}"
    said = (config.get("per_layer_config") or {}).values()
    if any(each.keys() - {"head_dim", "num_key_value_heads"} for each in said):
        return f"per_layer_config = {config['per_layer_config']!r}"
    sizes = sizes_of(config, family, layer_kinds(config, family))
    for layer, each in enumerate(sizes):
        number, dim = each.heads
        is_size = type(number) is type(dim) is int and number > 0 and 0 < dim * heads <= _MOST_WIDTH
        if not is_size or heads % number or dim % 2:
            return f"{heads} query heads over {number} heads of {dim} numbers in layer {layer}"
        if each.reads_layer is not None and sizes[each.reads_layer].heads != each.heads:
            return f"layer {layer}, which reads keys and values of layer {each.reads_layer}, whose heads differ"
    return None


def _mistake_in_delta_nets(config: Config, family: Family) -> str | None:
    if family.delta_nets is None:
        return None
    config = with_defaults(config, family)
    taps, shape = config["linear_conv_kernel_dim"], state_shape(config)
    if type(taps) is not int or not 2 <= taps <= MOST_TAPS:
        return f"linear_conv_kernel_dim = {plain_line(repr(taps), 80)}, expected a whole number from 2 to {MOST_TAPS}"
    if shape.heads % shape.key_heads or shape.channels > _MOST_WIDTH:
        return f"{shape.heads} value heads of {shape.value_dim} numbers over {shape.key_heads} keys of {shape.key_dim}"
    if FULL not in layer_kinds(config, family):
        return "no layer with attention"
    if family.output_gate and config.get("attention_bias"):
        return "biases of gated attention"
    return None


def check_served(config: Config, name: str) -> None:
    """Refuse what no level of this installation computes; arguments and errors are those of `check_family`."""
    check_family(config, name)
    try:
        check_kernels(config)
    except ModelSourceError:
        if not (has_torch() and is_for_torch(config)):
            raise
        check_torch(config, name)


def check_kernels(config: Config) -> None:
    """Refuse what the level int8 does not compute, of a configuration that makes sense."""
    try:
        plan = plan_of(config)
        plan.shape.check()
        sizes = [(f"{each.rotated} numbers of a head are rotated", each.rotated) for each in plan.rotaries]
        mixtures = [each.mixture for each in plan.layers if each.mixture is not None]
        inners = {inner for each in mixtures for inner in (each.inner, each.shared)}
        sizes += [(f"The width of an expert is {inner}", inner) for inner in inners]
        dims = {dim for each in plan.layers if each.delta_net is not None for dim in each.delta_net.state[2:4]}
        for what, size in [*sizes, *((f"A head of a recurrent state has {dim} numbers", dim) for dim in dims)]:
            if size % _KERNELS:
                raise KernelError(f"{what}, which is no multiple of {_KERNELS}.")
    except KernelError as error:
        raise unsupported(error, config) from error


def check_torch(config: Config, name: str) -> None:
    """Refuse what the levels float32 and bf16 do not compute."""
    check_family(config, name)
    if not is_for_torch(config):
        what = f"{name} is of the family {config['model_type']}, which the torch levels do not compute"
        raise ModelSourceError(f"{what}.", hint="Give --execution int8.")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for each in (rope, *(own for own in rope.values() if isinstance(own, Mapping))):
        is_long = "longrope" in (each.get("rope_type"), each.get("type"))
        if is_long and each.get("short_factor") != each.get("long_factor"):  # a GGUF file of a Llama 3 has one list
            what = f"{name} uses 'longrope' rotary scaling, which the torch levels choose again as a text grows"
            raise ModelSourceError(f"{what}.", hint="Give --execution int8.")
    try:
        plan_of(config)
    except KernelError as error:
        raise ModelSourceError(f"{name} cannot be computed: {error}", hint=_ANOTHER) from error


def is_for_torch(config: Config) -> bool:
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.torch


def is_plain_on_kernels(config: Config) -> bool:
    """Whether the kernels compute the level float32: of families with recurrent states, which torch's levels lack."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.delta_nets is not None


def has_torch() -> bool:
    return find_spec("torch") is not None and find_spec("transformers") is not None


def unsupported(error: KernelError, config: Config) -> ModelSourceError:
    torch = "Give --execution float32 or bf16, which torch computes."
    return ModelSourceError(
        f"The int8 kernels do not compute this target: {error}",
        hint=torch if is_for_torch(config) else _ANOTHER,
    )
