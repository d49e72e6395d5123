"""As `StateProjection`, in torch: for targets that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.projection import OUT_NORM, PROJECTION, in_norms


def torch_projection(
    config: DrafterConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from [tokens, entries * state width] to memory rows, [tokens, hidden size]; norms are in float32."""
    projection = tensors[PROJECTION].to(device, dtype)
    before = [tensors[name].to(device) for name in in_norms(config)]
    after = tensors[OUT_NORM].to(device) if OUT_NORM in tensors else None

    def normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows.float(), weight.shape, weight, config.rms_norm_eps).to(dtype)

    def project(states: torch.Tensor) -> torch.Tensor:
        if before:
            parts = states.chunk(len(before), dim=-1)
            states = torch.cat([normed(part, weight) for part, weight in zip(parts, before, strict=True)], dim=-1)
        rows = F.linear(states, projection)
        return rows if after is None else normed(rows, after)

    return project
