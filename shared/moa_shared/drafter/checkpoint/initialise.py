"""Tensors of a drafter that has not been trained: random from a seed, with norms at one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.shapes import expected_shapes

_NEAR_ZERO = np.float32(0.02)  # transformers' initializer_range, which the authors' norm weights got


def fresh_tensors(
    config: DrafterConfig, seed: int, draft_ids: npt.NDArray[np.int32] | None = None, *, norms_near_zero: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Random tensors by the checkpoint's names, float32. Linear weights have deviation 1 / sqrt(inputs).

    Args:
        draft_ids: [draft vocab] int32, of a reduced draft vocabulary; its first tokens where None.
        norms_near_zero: the authors' mistake, to reproduce it; norm weights start at one otherwise.
    """
    generator = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, shape in expected_shapes(config).items():
        if name == "draft_ids":
            tensors[name] = draft_ids if draft_ids is not None else np.arange(shape[0], dtype=np.int32)
        elif "norm" in name:
            near_zero = norms_near_zero
            random = _NEAR_ZERO * generator.standard_normal(shape, np.float32) if near_zero else None
            tensors[name] = np.ones(shape, np.float32) if random is None else random
        elif name.endswith(".bias"):
            tensors[name] = np.zeros(shape, np.float32)
        else:
            tensors[name] = generator.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
    return tensors
