"""EAGLE-3's half on the device: the kernels against numpy, and rows that come late, in part, or for a tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from moa_shared.drafter import ArrayWeights, Checkpoint, fresh_tensors
from moa_shared.drafter.kinds.baseline import BaselineState
from moa_shared.drafter.layers.arithmetic import FLOAT32, INT4, INT8, Arithmetic
from moa_shared.errors import ModelSourceError
from moa_shared.protocol.memory_codec import Codec, row_bytes

from tests.support.tiny_models import small_drafter, tiny_model

MODEL = tiny_model()
TARGET = ArrayWeights(MODEL.tensors)
TEXT = [5, 17, 42, 8, 17, 42, 90, 3, 11]
FORMS: dict[str, dict[str, Any]] = {
    "EAGLE-3": {"draft_vocab": 40},
    "two layers": {"own_layers": 2, "own_heads": 2, "own_head_dim": 64, "sa_kv_heads": 1},
    "EAGLE-3.1": {"feature_norm": "each", "normed_residual": True, "normed_feedback": True, "draft_vocab": 40},
    "Qwen's": {"head_norms": True, "qkv_bias": True, "feature_norm": "joint"},
    "of another width": {"hidden_size": 96, "target_hidden_size": 64, "own_embeddings": True},
}


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


def drafted(checkpoint: Checkpoint, weights: str) -> np.ndarray:
    """Logits below a text: of the next token, and of a tree's nodes."""
    state = state_of(checkpoint, weights)
    state.append_memory(0, rows_of(checkpoint, weights))
    state.extend(TEXT)
    return np.concatenate([state.begin(), state.expand([4, 9, 7], [-1, -1, 1]), state.expand([3], [2])])


@pytest.mark.parametrize("form", FORMS)
def test_the_kernels_compute_what_numpy_computes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = made(**FORMS[form])
    exact, rounded, coarse = (drafted(checkpoint, weights) for weights in (FLOAT32, INT8, INT4))
    monkeypatch.setattr(Arithmetic, "of", lambda weights, _: Arithmetic(weights == FLOAT32, in_numpy=True))
    expected = drafted(checkpoint, FLOAT32)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-4)
    size = float(np.abs(expected).mean())
    assert float(np.abs(rounded - expected).mean()) < 0.05 * size
    assert float(np.abs(coarse - expected).mean()) < 0.4 * size


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


def test_a_node_sees_its_ancestors_alone() -> None:
    checkpoint = made()
    state = state_of(checkpoint)
    state.append_memory(0, rows_of(checkpoint))
    state.extend(TEXT)
    state.begin()
    state.expand([4, 9, 7], [-1, -1, -1])
    in_tree = state.expand([3, 8], [1, 2])[0]
    state.begin()
    np.testing.assert_allclose(state.expand([9, 3], [-1, 0])[1], in_tree, rtol=0, atol=1e-5)


def test_embeddings_of_another_width_are_refused() -> None:
    checkpoint = made()
    narrow = ArrayWeights({"model.embed_tokens.weight": np.zeros((97, 32), np.float32)})
    with pytest.raises(ModelSourceError, match=r"shape \[97, 32\], the drafter needs \[97, 64\]"):
        checkpoint.states(narrow, FLOAT32)


def test_a_token_of_an_8b_target_takes_2_4_kb_in_int4() -> None:
    config = small_drafter(hidden_size=4096, kind="eagle3", state_entries=(2, 1, 3))
    assert row_bytes(Codec.INT4, config.memory_width) == 2304
