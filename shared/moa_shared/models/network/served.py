"""Whether a model is served, and on which levels: one answer for lists, plans, examinations and the start of a server.

Pure over the raw `config.json`, but for whether torch is installed. Invariant: what is refused here is refused before
anything is loaded, and what passes fails later only for what its weights hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from moa_kernels import KernelError
from moa_kernels.bindings import LANES

from moa_shared.errors import ModelSourceError
from moa_shared.models.network.description import EARLIEST
from moa_shared.models.network.family import check_family
from moa_shared.models.network.plan import Plan, plan_of

_KERNELS = 2 * LANES  # what sizes must be multiples of
_TORCH_FAMILIES = (  # whose layers are transformers' own, over attention in pages
    *EARLIEST,
    *("mistral", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2", "olmo3", "granite"),
)
_TORCH_ACTIVATIONS = (
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "relu2",
)
_ANOTHER = "Choose another model: `moa-server models` shows which are served."


def check_served(config: Mapping[str, Any], name: str) -> None:
    """Refuse what no level of this installation computes.

    Args:
        config: the content of `config.json`.
        name: what to call the model in messages.

    Raises:
        ModelSourceError: another family, or a configuration that makes no sense or that nothing computes.
    """
    check_family(config, name)
    try:
        check_kernels(config)
    except ModelSourceError:
        if not (has_torch() and is_for_torch(config)):
            raise
        check_torch(config, name)


def check_kernels(config: Mapping[str, Any]) -> None:
    """Refuse what the level int8 does not compute, of a configuration that makes sense.

    Raises:
        ModelSourceError: it does not, with why.
    """
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
    """Refuse what the levels float32 and bf16 do not compute.

    Raises:
        ModelSourceError: it is of another family than they compute, or makes no sense.
    """
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
    """The plan of a model that torch computes, which has more activations than the kernels.

    Raises:
        KernelError: angles, sizes or scalings that make no sense, or an activation that is not known.
    """
    given = config.get("hidden_activation") or config.get("hidden_act")
    if given is not None and given not in _TORCH_ACTIVATIONS:
        raise KernelError(f"The activation {given!r} is not known.")
    return plan_of({**config, "hidden_act": None, "hidden_activation": None})


def is_for_torch(config: Mapping[str, Any]) -> bool:
    """Whether the torch levels compute the family."""
    return config.get("model_type") in _TORCH_FAMILIES


def has_torch() -> bool:
    """Whether the torch levels are installed."""
    return find_spec("torch") is not None and find_spec("transformers") is not None


def unsupported(error: KernelError, config: Mapping[str, Any]) -> ModelSourceError:
    """The error for a user whose target the kernels do not take."""
    torch = "Give --execution float32 or bf16, which torch computes."
    return ModelSourceError(
        f"The int8 kernels do not compute this target: {error}",
        hint=torch if is_for_torch(config) else _ANOTHER,
    )
