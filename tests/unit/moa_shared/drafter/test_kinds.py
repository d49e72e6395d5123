"""What every kind of drafter keeps to: one runner over the registry, with a row (or some) a kind."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from moa_kernels import F32
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.companion import CompanionState
from moa_shared.drafter.kinds import KINDS, DrafterConfig
from moa_shared.drafter.kinds.mtp import MTP
from moa_shared.drafter.kinds.weights import FLOAT32, INT4, INT8, Arithmetic, ArrayWeights
from moa_shared.drafting.drafts import ConversationDrafter
from moa_shared.errors import CheckpointError, ProtocolError
from moa_shared.models.network.network import Network

from tests.support.tiny_models import ModelWeights, assistant_options, small_drafter, tiny_model

MODEL = tiny_model()
TARGET = ArrayWeights(MODEL.tensors)
TEXT = [5, 17, 42, 8, 17, 42, 90, 3, 11]
STATES = {"state_entries": (2, 1, 3), "sa_mlp": 96}
ROWS: dict[str, dict[str, Any]] = {
    "moa": {},
    "moa, layers reused": {"reused_layers": 1},
    "moa of states": {"lsa": False, "state_entries": (2, 1, 3), "reused_layers": 1},
    "moa without memory": {"lsa": False, "ca": False},
    "eagle2": {"output_norm": True},
    "eagle2 as published": {"input_norm": False, "fc_bias": True, "qkv_bias": True},
    "independent": {"own_layers": 2, "output_norm": True, "draft_vocab": 40},
    "eagle3": {**STATES, "draft_vocab": 40},
    "eagle3, two layers": {**STATES, "own_layers": 2, "own_heads": 2, "own_head_dim": 64, "sa_kv_heads": 1},
    "eagle3, 3.1": {**STATES, "feature_norm": "each", "normed_residual": True, "normed_feedback": True},
    "eagle3, Qwen's": {**STATES, "head_norms": True, "qkv_bias": True, "feature_norm": "joint"},
    "eagle3, narrow": {**STATES, "hidden_size": 96, "target_hidden_size": 64, "own_embeddings": True},
    "dflash": {**STATES, "own_layers": 2, "block_size": 6, "head_norms": True},
    "dflash, dspark": {**STATES, "block_size": 6, "markov_rank": 32, "anchor_guesses": True, "qkv_bias": True},
    "mtp": {"sa_mlp": 96},
    "mtp, three heads": {"sa_mlp": 96, "own_layers": 3, "hidden_first": True, "head_norms": True, "qkv_bias": True},
    "assistant": assistant_options(),
    "companion": {},
}


def kind_of(row: str) -> str:
    return row.partition(",")[0].partition(" ")[0]


CHECKPOINTS = [row for row in ROWS if kind_of(row) != "companion"]


def made(row: str) -> Checkpoint:
    """Random tensors, norms and biases too."""
    config = small_drafter(**{"kind": kind_of(row), **ROWS[row]})
    tensors, random = fresh_tensors(config, seed=4), np.random.default_rng(5)
    drawn = {name: random.normal(1, 0.1, each.shape) for name, each in tensors.items() if "norm" in name}
    drawn |= {name: random.normal(0, 0.1, each.shape) for name, each in tensors.items() if name.endswith("bias")}
    return Checkpoint(config, tensors | {name: each.astype(np.float32) for name, each in drawn.items()}, "64" * 32)


def read_of(config: DrafterConfig, count: int = len(TEXT) - 1) -> np.ndarray:
    """What its memory rows are made from: states, keys and values, or last hidden states."""
    shape: tuple[int, ...] = (config.target_layers, config.kv_width)
    if config.state_entries or config.reads_last_hidden:
        shape = (max(1, len(config.state_entries)) * config.state_width,)
    if config.memory_widths:
        shape = (config.memory_width,)
    return np.random.default_rng(6).standard_normal((count, *shape)).astype(np.float32)


def fed(row: str, text: list[int] = TEXT, weights: str = FLOAT32) -> ConversationDrafter:
    """A conversation with this text, and all rows of the tokens before the last."""
    if kind_of(row) == "companion":
        state: ConversationDrafter = CompanionState(Network(ModelWeights(MODEL), MODEL.config, plain=True), 97, kv=F32)
    else:
        checkpoint = made(row)
        config, state = checkpoint.config, checkpoint.states(TARGET, weights)()
        if config.memory_width:
            state.append_memory(0, checkpoint.rows(weights)(read_of(config))[: len(text) - 1])
        reused = np.random.default_rng(7).standard_normal((len(TEXT) - 1, config.hidden_size)).astype(np.float32)
        state.append_reused_state(0, reused[: len(text) - 1])
    state.extend(text)
    return state


def drafted(state: ConversationDrafter) -> np.ndarray:
    """Logits below a text: of the next token, and of a tree's nodes."""
    return np.concatenate([state.begin(), state.expand([4, 9, 7], [-1, -1, 1]), state.expand([3], [2])])


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_every_kind_has_a_row_and_says_what_it_is() -> None:
    assert {kind_of(row) for row in CHECKPOINTS} == set(KINDS)
    for name, kind in KINDS.items():
        assert (kind.name, bool(kind.label), bool(kind.about)) == (name, True, bool(kind.objective) or kind is MTP)


@pytest.mark.parametrize("row", CHECKPOINTS)
def test_its_configuration_is_stored_and_has_no_options_of_other_kinds(row: str) -> None:
    config = made(row).config
    assert DrafterConfig.from_json(config.to_json()) == config
    assert config.traits.method(config)
    others = set().union(*(kind.takes for kind in KINDS.values())) - config.traits.takes
    given: dict[str, Any] = {"state_entries": (1,), "feature_norm": "each", "layer_config": "{}"}
    given |= {**dict.fromkeys(("memory_layers", "memory_widths"), (1,)), "experts": (1, 1, 0)}
    for option in others:
        default = getattr(config, option)
        value = given.get(option, not default if isinstance(default, bool) else 2)
        with pytest.raises(CheckpointError, match=f"may have {option}"):
            dataclasses.replace(config, output_norm=False, **{option: value})


def test_memory_rows_are_known_by_the_states_that_they_are_made_from() -> None:
    first = made("moa of states")
    other = dataclasses.replace(first, config=dataclasses.replace(first.config, state_entries=(1, 2, 3)))
    assert first.memory_fingerprint != other.memory_fingerprint
    with pytest.raises(CheckpointError, match="in place of layer self-attention"):
        small_drafter(state_entries=(1, 2))


@pytest.mark.torch
@pytest.mark.parametrize(
    "row", [row for row in CHECKPOINTS if small_drafter(**{"kind": kind_of(row), **ROWS[row]}).memory_width]
)
def test_torch_and_the_kernels_make_the_same_rows(row: str) -> None:
    import torch

    checkpoint = made(row)
    states = 3 * read_of(checkpoint.config)
    rows = checkpoint.rows(FLOAT32)(states)
    assert rows.shape == (len(TEXT) - 1, checkpoint.config.memory_width)
    close(checkpoint.torch_rows(torch.float32)(torch.from_numpy(states)).numpy(), rows)
    rounded = checkpoint.rows(INT8)(states)
    assert float(np.abs(rounded - rows).mean()) < 0.05 * float(np.abs(rows).mean())


@pytest.mark.parametrize("row", CHECKPOINTS)
def test_the_kernels_compute_what_numpy_computes(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, rounded, coarse = (drafted(fed(row, weights=weights)) for weights in (FLOAT32, INT8, INT4))
    monkeypatch.setattr(Arithmetic, "of", lambda weights, _: Arithmetic(weights == FLOAT32, in_numpy=True))
    expected = drafted(fed(row))
    close(exact, expected)
    errors = np.array([np.abs(each - expected).mean() for each in (rounded, coarse)])
    assert (errors < np.array([0.1, 0.6]) * np.abs(expected).mean()).all()


@pytest.mark.parametrize("row", ROWS)
def test_a_node_sees_its_ancestors_alone(row: str) -> None:
    state = fed(row)
    state.begin()
    first, second = state.expand([4, 9], [-1, -1]), state.expand([3, 8, 6], [1, 0, 1])
    for path, logits in zip(([4], [9], [9, 3], [4, 8], [9, 6]), (*first, *second), strict=True):
        state.begin()
        alone = [state.expand([token], [step - 1]) for step, token in enumerate(path)]
        close(alone[-1][0], logits)


@pytest.mark.parametrize("row", ROWS)
def test_a_conversation_cut_back_is_as_one_that_never_went_on(row: str) -> None:
    state, fresh = fed(row), fed(row, TEXT[:6])
    drafted(state)
    state.crop(5)
    fresh.crop(5)
    for each in (state, fresh):
        each.extend([70, 71])
    close(drafted(state), drafted(fresh))
    state.begin()
    assert len(state.expand([4], [-1])) == 1
    state.extend([4])  # of which the draft was right
    fresh.begin()
    fresh.extend([4])
    close(drafted(state), drafted(fresh))


@pytest.mark.parametrize("row", [row for row in CHECKPOINTS if row not in ("independent", "moa without memory")])
def test_rows_of_another_width_are_refused(row: str) -> None:
    with pytest.raises(ProtocolError, match=r"Expected memory rows of \d+ numbers, got 3\."):
        fed(row).append_memory(0, np.zeros((1, 3), np.float32))


def two_states(row: str) -> tuple[np.ndarray, ConversationDrafter, ConversationDrafter]:
    """Memory rows, and two conversations that have none of them."""
    checkpoint = made(row)
    new_state = checkpoint.states(TARGET, FLOAT32)
    return checkpoint.rows(FLOAT32)(read_of(checkpoint.config)), new_state(), new_state()


def test_rows_that_come_late_change_nothing_in_the_end() -> None:
    rows, whole, late = two_states("eagle3, 3.1")
    whole.append_memory(0, rows)
    whole.extend(TEXT)
    late.extend(TEXT[:5])
    late.append_memory(0, rows[:2])
    late.begin()  # over its own states from position 2 on
    late.expand([TEXT[5], 1], [-1, -1])
    late.extend(TEXT[5:])  # of which the draft was right about the first: its row goes all the same
    alone = late.begin()
    late.append_memory(2, rows[2:])
    close(late.begin(), whole.begin())
    assert np.abs(late.begin() - alone).max() > 1e-2
    late.crop(6)
    whole.crop(6)
    close(late.begin(), whole.begin())


def test_a_text_read_in_pieces_leaves_little_to_a_drafts_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, whole, behind = two_states("eagle3")
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
    close(behind.begin(), expected)
    assert behind.catch_up(3)  # which leaves a draft alone
    assert len(behind.expand([4], [-1])) == 1
