"""On which level a model runs here: one answer for plans, for examinations and for the start of a server.

Reads settings, a model's configuration and what this machine has; loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_kernels import KernelError, explain, variant_name
from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.network.served import check_kernels, check_served, check_torch, has_torch
from moa_shared.programs.missing_packages import install_extra
from moa_shared.protocol.levels import BF16, FLOAT32, INT8

from moa_server.settings import ServerSettings

AUTO = "auto"
CUDA = "cuda"
NUMPY = "numpy"  # the kernels' variant on a machine that cannot run them
TORCH_LEVELS = "Give --execution float32 or bf16, which torch computes."


def choose_level(settings: ServerSettings, config: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The level that the settings name; auto: int8 where the kernels run and compute the model, else bf16.

    Args:
        config: the content of the model's config.json.
        name: what to call the model in messages.

    Returns:
        int8, float32 or bf16, and why `auto` is not int8; "": it is, or there is no need to say.

    Raises:
        ModelSourceError: the level does not compute the model, or none does.
        ConfigError: a level that this machine cannot run.
    """
    wanted: str = settings.execution
    if wanted == AUTO and settings.device == CUDA:
        wanted = BF16
    if wanted in (FLOAT32, BF16):
        check_torch(config, name)
        return wanted, ""
    if settings.device == CUDA:
        raise ConfigError("The level int8 is computed on CPUs only.", hint="Leave --device out, or --execution.")
    try:
        has_kernels = variant_name() != NUMPY
    except KernelError as error:
        raise ConfigError(str(error), hint=TORCH_LEVELS) from error
    if wanted == INT8:
        if not has_kernels:
            raise ConfigError(f"The level int8 needs kernels. {explain()}", hint=TORCH_LEVELS)
        check_kernels(config)
        return INT8, ""
    check_served(config, name)
    reason = explain()
    if has_kernels:
        try:
            check_kernels(config)
        except ModelSourceError as error:
            return BF16, error.message
        return INT8, ""
    if not has_torch():
        raise ConfigError(f"This machine can run no level of execution. {reason}", hint=install_torch())
    check_torch(config, name)
    return BF16, reason


def install_torch() -> str:
    """The hint where a level is computed by torch alone."""
    return f"Install torch: {install_extra('torch')}."
