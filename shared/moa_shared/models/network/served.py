"""Whether a model is served, and on which levels: one answer for lists, plans, examinations and the start of a server.

Pure over the raw `config.json`, but for whether torch is installed. Invariant: what is refused here is refused before
anything is loaded, and what passes is computed exactly, and fails later only for what its weights hold; what would be
computed wrongly (position scaling that depends on how long the text became, say) is refused.
"""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from moa_kernels import KernelError
from moa_kernels.bindings import LANES

from moa_shared.errors import ModelSourceError
from moa_shared.models.families import EARLIEST, FAMILIES
from moa_shared.models.gguf.keys import FULL, MOST_LAYERS, SLIDING
from moa_shared.models.network.layer_sizes import mistake_in_mixture, mistake_in_sizes
from moa_shared.models.network.plan import Plan, plan_of
from moa_shared.plain_text import plain_line

MOST_SIZE = 1 << 24  # of other sizes: the widest models have a quarter of a million tokens, and MLPs of 53,248 numbers
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")  # absent or null where others say it
_FACTORS = (
    *("attention_multiplier", "embedding_multiplier", "logits_scaling", "original_max_position_embeddings"),
    *("partial_rotary_factor", "query_pre_attn_scalar", "residual_multiplier", "rope_local_base_freq", "rope_theta"),
)
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "rms_norm_eps")  # 0: none
_MOST_SHOWN = 80  # characters of a wrong value in a message
_QWENS = ("qwen2", "qwen3", "qwen3_moe")  # whose windows are used only where use_sliding_window says so
_KERNELS = 2 * LANES  # what sizes must be multiples of
_TORCH_ACTIVATIONS = (
    *("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2"),
)
_ANOTHER = "Choose another model: `moa-server models` shows which are served."


def check_family(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config.json that is not computed exactly: another family, a rope that changes with the length, nonsense.

    `name`: what to call the model in messages.
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
    by_layer = isinstance(rope, Mapping) and bool(rope) and family not in EARLIEST and set(rope) <= {FULL, SLIDING}
    ropes = [each or {} for each in rope.values()] if by_layer else [rope]
    if not isinstance(layer_types, list) or not all(map(_is_rope, ropes)):
        raise _wrong(name, "layer_types or rotary parameters that make no sense")
    if (wrong := _mistake_in_layers(config)) is not None:
        shown = plain_line(wrong, 2 * _MOST_SHOWN)
        raise _wrong(name, f"{shown}, which moa does not compute", "Fetch the model again, or choose another.")
    if any(each.get("rope_type", each.get("type")) == "dynamic" for each in ropes):
        raise ModelSourceError(
            f"{name} uses 'dynamic' rotary scaling, under which cached keys depend on how long the text became.",
            hint="Choose a model with default, linear, yarn, llama3 or longrope rotary scaling.",
        )


def _wrong(name: str, what: str, hint: str = "Fetch the model again.") -> ModelSourceError:
    return ModelSourceError(f"The config.json of {name} has {what}.", hint=hint)


def _check_sizes(config: Mapping[str, Any], name: str) -> None:
    """Refuses sizes that a network cannot have: layers are allocated by them, and heads divided."""
    for size in (*_SIZES, *_OPTIONAL_SIZES):
        value = config.get(size)
        if value is None and size in _OPTIONAL_SIZES:
            continue
        most = MOST_LAYERS if size == "num_hidden_layers" else MOST_SIZE
        if type(value) is not int or not 0 < value <= most:
            shown = plain_line(repr(value), _MOST_SHOWN)
            raise _wrong(name, f"{size} = {shown}, expected a whole number from 1 to {most}")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads, head_dim = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    if heads % kv_heads or not head_dim or head_dim % 2:
        what = f"{heads} query heads over {kv_heads} key/value heads of {head_dim} numbers, which is no network"
        raise _wrong(name, what)


def _check_numbers(config: Mapping[str, Any], name: str) -> None:
    for key in (*_FACTORS, *_CAPS):
        value = config.get(key)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        if not is_number or (value == 0 and key in _FACTORS):
            least, shown = "above 0" if key in _FACTORS else "of at least 0", plain_line(repr(value), _MOST_SHOWN)
            raise _wrong(name, f"{key} = {shown}, expected a number {least}")


def _mistake_in_layers(config: Mapping[str, Any]) -> str | None:
    """What makes no sense of windows, kinds of layers and lists by layer, or is not computed; None: nothing."""
    count, kinds, turned = config["num_hidden_layers"], config.get("layer_types"), config.get("no_rope_layers")
    name, window = str(config["model_type"]), config.get("sliding_window")
    wrong = None
    if kinds and (len(kinds) != count or any(kind not in (FULL, SLIDING) for kind in kinds)):
        wrong = f"layer_types = {kinds} for {count} layers"
    elif turned and (
        not isinstance(turned, list) or len(turned) != count or any(each not in (0, 1) for each in turned)
    ):
        wrong = f"no_rope_layers = {turned} for {count} layers"
    elif window is not None and (type(window) is not int or not 0 < window <= MOST_SIZE):
        wrong = f"sliding_window = {window!r}"
    elif window is None and SLIDING in (kinds or ()):
        wrong = "layers with a sliding window, and no size of it"
    for key in ("sliding_window_pattern", "no_rope_layer_interval"):
        value = config.get(key)
        if value is not None and (type(value) is not int or value < 1):
            wrong = f"{key} = {value!r}"
    if name in _QWENS and config.get("use_sliding_window"):
        first = config.get("max_window_layers", 0)
        if type(first) is not int or first < 0:
            wrong = f"max_window_layers = {first!r}"
        elif "sliding_window" not in config:
            wrong = "use_sliding_window, and no sliding_window"
    elif name in EARLIEST and SLIDING in (kinds or ()):
        wrong = "layers with a sliding window, which its family does not have or it does not use"
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):  # of texts, that is none
        return "bidirectional attention, which writes no text"
    family = FAMILIES[name]
    return mistake_in_mixture(config, family, MOST_SIZE) or wrong or mistake_in_sizes(config, family, MOST_SIZE)


def _is_rope(value: object) -> bool:
    entries = value.values() if isinstance(value, Mapping) else [{}]
    flat = [inner for each in entries for inner in (each if isinstance(each, list) else [each])]
    return not any(isinstance(each, list | Mapping) for each in flat)


def check_served(config: Mapping[str, Any], name: str) -> None:
    """Refuse what no level of this installation computes; arguments and errors are those of `check_family`."""
    check_family(config, name)
    try:
        check_kernels(config)
    except ModelSourceError:
        if not (has_torch() and is_for_torch(config)):
            raise
        check_torch(config, name)


def check_kernels(config: Mapping[str, Any]) -> None:
    """Refuse what the level int8 does not compute, of a configuration that makes sense."""
    try:
        plan = plan_of(config)
        plan.shape.check()
        for rotary in plan.rotaries:
            if rotary.rotated % _KERNELS:
                raise KernelError(
                    f"{rotary.rotated} numbers of a head are rotated, which is no multiple of {_KERNELS}."
                )
        for mixture in {each.mixture for each in plan.layers}:
            if mixture is not None and mixture.inner % _KERNELS:
                raise KernelError(f"The width of an expert is {mixture.inner}, which is no multiple of {_KERNELS}.")
    except KernelError as error:
        raise unsupported(error, config) from error


def check_torch(config: Mapping[str, Any], name: str) -> None:
    """Refuse what the levels float32 and bf16 do not compute."""
    check_family(config, name)
    if not is_for_torch(config):
        raise ModelSourceError(
            f"{name} is of the family {config['model_type']}, which the torch levels do not compute.",
            hint="Give --execution int8.",
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for each in (rope, *(own for own in rope.values() if isinstance(own, Mapping))):
        is_long = "longrope" in (each.get("rope_type"), each.get("type"))
        if is_long and each.get("short_factor") != each.get("long_factor"):  # a GGUF file of a Llama 3 has one list
            raise ModelSourceError(
                f"{name} uses 'longrope' rotary scaling, which the torch levels choose again as a text grows.",
                hint="Give --execution int8.",
            )
    try:
        torch_plan(config)
    except KernelError as error:
        raise ModelSourceError(f"{name} cannot be computed: {error}", hint=_ANOTHER) from error


def torch_plan(config: Mapping[str, Any]) -> Plan:
    """The plan of a model that torch computes, which has more activations than the kernels."""
    given = config.get("hidden_activation") or config.get("hidden_act")
    if given is not None and given not in _TORCH_ACTIVATIONS:
        raise KernelError(f"The activation {given!r} is not known.")
    return plan_of({**config, "hidden_act": None, "hidden_activation": None})


def is_for_torch(config: Mapping[str, Any]) -> bool:
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.torch


def has_torch() -> bool:
    return find_spec("torch") is not None and find_spec("transformers") is not None


def unsupported(error: KernelError, config: Mapping[str, Any]) -> ModelSourceError:
    torch = "Give --execution float32 or bf16, which torch computes."
    return ModelSourceError(
        f"The int8 kernels do not compute this target: {error}",
        hint=torch if is_for_torch(config) else _ANOTHER,
    )
