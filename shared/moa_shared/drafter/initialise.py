"""Tensors of a drafter that has not been trained: random from a seed, with norms at one."""

from __future__ import annotations

import torch

from moa_shared.drafter.checkpoint import expected_shapes
from moa_shared.drafter.config import DrafterConfig

_NEAR_ZERO = 0.02  # transformers' initializer_range, which the authors' norm weights got


def fresh_tensors(
    config: DrafterConfig, seed: int, draft_ids: torch.Tensor | None = None, *, norms_near_zero: bool = False
) -> dict[str, torch.Tensor]:
    """By the checkpoint's names, float32. Linear weights have deviation 1 / sqrt(inputs).

    Args:
        draft_ids: [draft vocab] int32, of a reduced draft vocabulary; its first tokens where None.
        norms_near_zero: the authors' mistake, to reproduce it; norm weights start at one otherwise.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        if name == "draft_ids":
            tensors[name] = draft_ids if draft_ids is not None else torch.arange(shape[0], dtype=torch.int32)
        elif "norm" in name:
            near_zero = torch.randn(shape, generator=generator) * _NEAR_ZERO if norms_near_zero else None
            tensors[name] = torch.ones(shape) if near_zero is None else near_zero
        elif name.endswith(".bias"):
            tensors[name] = torch.zeros(shape)
        else:
            tensors[name] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    return tensors
