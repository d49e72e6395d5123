"""The server's half of a drafter that reads several of the target's states: one row of its own width a token.

Norms of these states come before the projection (EAGLE-3.1) or after it (DFlash), where the drafter has them. Runs on
the kernels, or in numpy where they do not take its sizes. State: weights only.
"""

from __future__ import annotations

import numpy as np

from moa_shared.drafter.checkpoint.config import EACH, JOINT, DrafterConfig
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.models.network.layers import Weights

PROJECTION = "fc.weight"
OUT_NORM = "hidden_norm.weight"


class StateProjection:
    """Makes memory rows.

    Args:
        config: of a drafter with `state_entries`.
        own: the checkpoint's tensors.
        weights: as of `Checkpoint.rows`.

    Raises:
        ConfigError, ModelSourceError, KernelError: weights that cannot be used.
    """

    def __init__(self, config: DrafterConfig, own: Weights, weights: str) -> None:
        self._arithmetic = Arithmetic.of(weights, (config.state_width, config.hidden_size))
        self._eps = config.rms_norm_eps
        self._in_norms = [own.array(name) for name in in_norms(config)]
        self._projection = self._arithmetic.linear([own.array(PROJECTION)])
        self._out_norm = own.array(OUT_NORM) if OUT_NORM in own.names() else None

    def __call__(self, states: Rows) -> Rows:
        """[tokens, entries * state width], entry after entry, to [tokens, hidden size]."""
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
