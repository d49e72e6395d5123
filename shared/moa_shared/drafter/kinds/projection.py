"""The server's half of kinds that read several of the target's states: one row of their own width a token.

Norms of these states come before the projection (EAGLE-3.1) or after it, where the drafter has them. Runs on the
kernels, in numpy where they do not take its sizes, or in torch for targets that torch runs. State: weights only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from moa_shared.drafter.kinds.config import EACH, JOINT, DrafterConfig, Kind, MakeRows
from moa_shared.drafter.layers.weights import Arithmetic, Rows
from moa_shared.models.network.layers import Weights

if TYPE_CHECKING:
    import torch

    from moa_shared.drafter.kinds.config import Device, Tensors, TorchRows

# Beginnings of the names of what the server runs; the device's half begins with what it projects states to.
PROJECTION_TENSORS = ("fc.", "fc_norm.", "input_norm.", "hidden_norm.")
PROJECTION = "fc.weight"
OUT_NORM = "hidden_norm.weight"


class StateProjection:
    """Makes memory rows."""

    def __init__(self, config: DrafterConfig, own: Weights, weights: str) -> None:
        self._arithmetic = Arithmetic.of(weights, (config.state_width, config.hidden_size))
        self._eps = config.rms_norm_eps
        self._in_norms = [own.array(name) for name in in_norms(config)]
        self._projection = self._arithmetic.linear([own.array(PROJECTION)])
        self._out_norm = own.array(OUT_NORM) if OUT_NORM in own.names() else None

    def __call__(self, states: Rows) -> Rows:
        if self._in_norms:
            parts = np.split(states, len(self._in_norms), axis=-1)
            normed = [self._normed(part, weight) for part, weight in zip(parts, self._in_norms, strict=True)]
            states = np.concatenate(normed, axis=-1)
        rows = self._projection(states)
        return rows if self._out_norm is None else self._normed(rows, self._out_norm)

    def _normed(self, rows: Rows, weight: Rows) -> Rows:
        return self._arithmetic.norm(np.ascontiguousarray(rows), weight, self._eps)


def in_norms(config: DrafterConfig) -> list[str]:
    """The norms before the projection, each of an equal part of the states side by side."""
    if config.feature_norm == JOINT:
        return ["input_norm.weight"]
    if config.feature_norm == EACH:
        return [f"fc_norm.{index}.weight" for index in range(len(config.state_entries))]
    return []


class KindOfStates(Kind):
    """A kind whose memory rows are projected from some of the target's hidden states."""

    reads_states = True
    takes = frozenset({"qkv_bias", "state_entries", "target_hidden_size", "own_heads", "own_head_dim", "head_norms"})

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {f"{self.name} reads the states of layers (state_entries)": bool(config.state_entries)}

    def server_tensors(self, config: DrafterConfig) -> tuple[str, ...]:
        return PROJECTION_TENSORS

    def rows(self, config: DrafterConfig, own: Weights, weights: str) -> MakeRows:
        return StateProjection(config, own, weights)

    def torch_rows(self, config: DrafterConfig, tensors: Tensors, dtype: torch.dtype, device: Device) -> TorchRows:
        import torch
        from torch.nn import functional as F

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
