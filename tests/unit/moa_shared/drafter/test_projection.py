"""The server's half of drafters that read several states: the kernels and torch compute what numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter import Checkpoint, fresh_tensors

from tests.support.tiny_models import small_drafter

pytestmark = pytest.mark.torch


def plain(checkpoint: Checkpoint, states: np.ndarray) -> np.ndarray:
    """The projection as it is defined, in float64."""

    def normed(rows: np.ndarray, name: str) -> np.ndarray:
        scale = 1 / np.sqrt((rows**2).mean(-1, keepdims=True) + checkpoint.config.rms_norm_eps)
        out: np.ndarray = rows * scale * checkpoint.tensors[name]
        return out

    rows = states.astype(np.float64)
    if checkpoint.config.feature_norm == "joint":
        rows = normed(rows, "input_norm.weight")
    if checkpoint.config.feature_norm == "each":
        parts = np.split(rows, 3, axis=-1)
        rows = np.concatenate([normed(part, f"fc_norm.{index}.weight") for index, part in enumerate(parts)], axis=-1)
    rows = rows @ checkpoint.tensors["fc.weight"].T
    after = "hidden_norm.weight"
    return normed(rows, after) if after in checkpoint.tensors else rows


@pytest.mark.parametrize(
    "changes",
    [{}, {"feature_norm": "joint"}, {"feature_norm": "each"}, {"kind": "dflash", "block_size": 4}],
    ids=["EAGLE-3", "one norm before", "a norm of each", "a norm after"],
)
def test_rows(changes: dict[str, Any]) -> None:
    config = small_drafter(**{"kind": "eagle3", "state_entries": (2, 1, 3), **changes})
    tensors, random = fresh_tensors(config, seed=1), np.random.default_rng(2)
    tensors |= {name: random.normal(1, 0.2, each.shape) for name, each in tensors.items() if "norm" in name}
    checkpoint = Checkpoint(config, {name: each.astype(np.float32) for name, each in tensors.items()}, "")
    states = (3 * random.standard_normal((7, 192))).astype(np.float32)
    expected = plain(checkpoint, states)
    np.testing.assert_allclose(checkpoint.rows("float32")(states), expected, rtol=0, atol=1e-4)
    in_torch = checkpoint.torch_rows(torch.float32)(torch.from_numpy(states)).numpy()
    np.testing.assert_allclose(in_torch, expected, rtol=0, atol=1e-4)
    rounded = checkpoint.rows("int8")(states)
    assert float(np.abs(rounded - expected).mean()) < 0.05 * float(np.abs(expected).mean())
