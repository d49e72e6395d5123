"""Rows of drafters that read a feature for each token, which may come late, or in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from moa_shared.drafter import ArrayWeights, Checkpoint, fresh_tensors
from moa_shared.drafter.kinds.baseline import BaselineState
from moa_shared.drafter.layers.weights import FLOAT32

from tests.support.tiny_models import small_drafter, tiny_model

MODEL = tiny_model()
TARGET = ArrayWeights(MODEL.tensors)
TEXT = [5, 17, 42, 8, 17, 42, 90, 3, 11]


def made(**changes: Any) -> Checkpoint:
    config = small_drafter(**{"kind": "eagle3", "sa_mlp": 96, "state_entries": (2, 1, 3), **changes})
    tensors = fresh_tensors(config, seed=4)
    random = np.random.default_rng(5)
    drawn = {name: random.normal(1, 0.1, each.shape) for name, each in tensors.items() if "norm" in name}
    drawn |= {name: random.normal(0, 0.1, each.shape) for name, each in tensors.items() if name.endswith("bias")}
    return Checkpoint(config, tensors | {name: each.astype(np.float32) for name, each in drawn.items()}, "64" * 32)


def state_of(checkpoint: Checkpoint, weights: str = FLOAT32) -> BaselineState:
    state = checkpoint.states(TARGET, weights)()
    assert isinstance(state, BaselineState)
    return state


def rows_of(checkpoint: Checkpoint, weights: str = FLOAT32, count: int = len(TEXT) - 1) -> np.ndarray:
    states = np.random.default_rng(6).standard_normal((count, 3 * 64)).astype(np.float32)
    return checkpoint.rows(weights)(states)


def test_rows_that_come_late_change_nothing_in_the_end() -> None:
    checkpoint = made(normed_feedback=True)
    rows = rows_of(checkpoint)
    whole, late = state_of(checkpoint), state_of(checkpoint)
    whole.append_memory(0, rows)
    whole.extend(TEXT)
    late.extend(TEXT[:5])
    late.append_memory(0, rows[:2])
    late.begin()  # over its own states from position 2 on
    late.expand([TEXT[5], 1], [-1, -1])
    late.extend(TEXT[5:])  # of which the draft was right about the first: its row goes all the same
    alone = late.begin()
    late.append_memory(2, rows[2:])
    np.testing.assert_allclose(late.begin(), whole.begin(), rtol=0, atol=1e-5)
    assert np.abs(late.begin() - alone).max() > 1e-2
    late.crop(6)
    whole.crop(6)
    np.testing.assert_allclose(late.begin(), whole.begin(), rtol=0, atol=1e-5)


def test_a_text_read_in_pieces_gives_the_same_draft_and_leaves_little_to_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = made()
    rows = rows_of(checkpoint)
    whole, behind = state_of(checkpoint), state_of(checkpoint)
    for state in (whole, behind):
        state.extend(TEXT)
    whole.append_memory(0, rows)
    behind.append_memory(0, rows[:5])
    assert not behind.catch_up(4)
    behind.append_memory(5, rows[5:])
    assert not behind.catch_up(3)
    assert behind.catch_up(3)
    expected = whole.begin()
    monkeypatch.setattr(behind, "_read", None)  # nothing is left to read
    np.testing.assert_allclose(behind.begin(), expected, rtol=0, atol=1e-5)
    assert behind.catch_up(3)  # which leaves a draft alone
    assert len(behind.expand([4], [-1])) == 1


def test_rows_of_the_newest_tokens_count_though_older_ones_never_come() -> None:
    checkpoint = made()
    rows = rows_of(checkpoint)
    late, early = state_of(checkpoint), state_of(checkpoint)
    early.append_memory(4, rows[4:])
    early.extend(TEXT)
    late.append_memory(4, rows[4:6])
    late.extend(TEXT)
    unaware = late.begin()  # over its own states from position 6 on
    late.append_memory(6, rows[6:])
    np.testing.assert_allclose(late.begin(), early.begin(), rtol=0, atol=1e-5)
    assert np.abs(late.begin() - unaware).max() > 1e-2
