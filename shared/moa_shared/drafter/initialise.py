"""Tensors of a drafter that has not been trained: random from a seed, with norms at one."""

from __future__ import annotations

import torch

from moa_shared.drafter.checkpoint import expected_shapes
from moa_shared.drafter.config import DrafterConfig


def fresh_tensors(config: DrafterConfig, seed: int, draft_ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """By the checkpoint's names, float32. Linear weights have deviation 1 / sqrt(inputs)."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        if name == "draft_ids":
            tensors[name] = draft_ids if draft_ids is not None else torch.arange(shape[0], dtype=torch.int32)
        elif "norm" in name:
            tensors[name] = torch.ones(shape)
        elif name.endswith(".bias"):
            tensors[name] = torch.zeros(shape)
        else:
            tensors[name] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    return tensors
