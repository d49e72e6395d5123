"""Memory rows from the target's states in place of layer self-attention: the kernels and torch do what numpy does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from moa_shared.drafter import Checkpoint, fresh_tensors
from moa_shared.errors import CheckpointError

from tests.support.tiny_models import small_drafter

pytestmark = pytest.mark.torch


def test_memory_rows_from_states() -> None:
    config = small_drafter(lsa=False, state_entries=(2, 1, 3), reused_layers=1)
    tensors, random = fresh_tensors(config, seed=1), np.random.default_rng(2)
    norm = "cross_attention.input_layernorm.weight"
    tensors[norm] = random.normal(1, 0.2, tensors[norm].shape).astype(np.float32)
    checkpoint = Checkpoint(config, tensors, "")
    states = (3 * random.standard_normal((7, 192))).astype(np.float32)
    memory = states @ tensors["fc.weight"].T
    normed = memory / np.sqrt((memory**2).mean(-1, keepdims=True) + config.rms_norm_eps) * tensors[norm]
    parts = [normed @ tensors[f"cross_attention.self_attn.{part}_proj.weight"].T for part in "kv"]
    expected = np.concatenate(parts, axis=-1)
    np.testing.assert_allclose(checkpoint.rows("float32")(states), expected, rtol=0, atol=1e-4)
    in_torch = checkpoint.torch_rows(torch.float32)(torch.from_numpy(states)).numpy()
    np.testing.assert_allclose(in_torch, expected, rtol=0, atol=1e-4)


def test_they_are_known_by_the_states_that_they_are_made_from() -> None:
    config = small_drafter(lsa=False, state_entries=(2, 1))
    checkpoint = Checkpoint(config, fresh_tensors(config, seed=1), "")
    other = dataclasses.replace(checkpoint, config=dataclasses.replace(config, state_entries=(1, 2)))
    assert checkpoint.memory_fingerprint != other.memory_fingerprint
    with pytest.raises(CheckpointError, match="in place of layer self-attention"):
        small_drafter(state_entries=(1, 2))
