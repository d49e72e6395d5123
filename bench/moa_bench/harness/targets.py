"""Targets as the server loads them: on a level of execution and, at int8, on any variant of the kernels."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from moa_server.verifier.execution_level import Execution
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import INT8


def load_level(files: ModelFiles, level: str, progress: Progress, *, kv: str = "f16") -> Execution:
    """The target on this level, with one thread; at int8 on the variant in use.

    Args:
        kv: how keys and values are kept, as the server's `--kv` says it.
    """
    from moa_server.settings import SECTION, ServerSettings
    from moa_server.verifier.execution_level import load_execution
    from moa_shared.programs.config import load_settings

    fields = {"execution": level, "threads": 1, "kv": kv}
    return load_execution(files, load_settings(ServerSettings, SECTION, fields, environment={}), progress)


def use_threads(level: str, count: int) -> None:
    if level == INT8:
        from moa_kernels import set_threads

        set_threads(count)
    else:
        import torch

        torch.set_num_threads(count)


def variants_here() -> list[str]:
    """The compiled variants that this CPU runs, fastest first."""
    from moa_kernels import KernelError, explain
    from moa_kernels.variants import VARIANTS

    found = []
    for variant in VARIANTS:
        try:
            with on_variant(variant.name):
                explain()
        except KernelError:
            continue
        found.append(variant.name)
    if not found:
        raise ConfigError(f"There are no kernels to measure. {explain()}")
    return found


@contextmanager
def on_variant(name: str | None) -> Iterator[None]:
    """Load and run kernels of this variant in the block; None: as the environment says."""
    from moa_kernels.library import VARIANT_VARIABLE

    if name is None:
        yield
        return
    before = os.environ.get(VARIANT_VARIABLE)
    os.environ[VARIANT_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIANT_VARIABLE]
        else:
            os.environ[VARIANT_VARIABLE] = before
