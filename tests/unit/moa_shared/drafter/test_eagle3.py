"""EAGLE-3: rows that come late, or in part; what its published layouts become, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inline_snapshot import snapshot
from moa_server.loading import check_drafter
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, fresh_tensors, load_checkpoint
from moa_shared.drafter.kinds.baseline import BaselineState
from moa_shared.drafter.kinds.config import Published
from moa_shared.drafter.kinds.eagle3 import _state_entries
from moa_shared.drafter.layers.weights import FLOAT32, ArrayWeights
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles, WeightReader, resolve

from tests.support.messages import raises
from tests.support.published_drafters import (
    EAGLE3_CONFIG,
    EAGLE3_VOCAB,
    HEAD_DIM,
    HIDDEN,
    SPECULATORS_CONFIG,
    eagle3_tensors,
    publish,
    publish_eagle3,
    publish_speculator,
    save_llama3,
)
from tests.support.tiny_models import small_drafter, tiny_model

pytestmark = pytest.mark.torch

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


VOCAB = 97
FC = torch.zeros(HIDDEN, 3 * HIDDEN)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("eagle3")
    return resolve(str(save_llama3(folder / "tiny-llama3")), folder / "cache")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def found(folder: Path, files: ModelFiles) -> Checkpoint:
    return load_checkpoint(find_drafter(str(folder), files))


# ---------------------------------------------------------------- what is taken


@pytest.mark.parametrize("how", [{}, {"shards": 3}, {"pickled": False}, {"pickled": False, "shards": 2}])
def test_specforges_layout(tmp_path: Path, files: ModelFiles, how: dict[str, Any]) -> None:
    made = found(publish_eagle3(tmp_path / "eagle3", **how), files)
    config = made.config
    assert (config.kind, config.state_entries, config.draft_vocab) == ("eagle3", (1, 2, 3), EAGLE3_VOCAB)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}  # not the target's
    assert not config.own_embeddings
    assert made.tensors["draft_ids"].tolist() == list(range(1, 2 * EAGLE3_VOCAB, 2))
    theirs = eagle3_tensors()["midlayer.self_attn.q_proj.weight"].float().numpy()
    np.testing.assert_array_equal(made.tensors["layers.0.self_attn.q_proj.weight"], theirs)
    assert "t2d" not in made.tensors


def test_speculators_layout(tmp_path: Path, files: ModelFiles) -> None:
    config = found(publish_speculator(tmp_path / "speculator"), files).config
    assert (config.state_entries, config.normed_residual, config.normed_feedback) == ((1, 2, 3), True, False)
    assert not config.own_embeddings  # a copy of the target's, which every device has
    norms = {f"fc_norm.{index}.weight": torch.ones(HIDDEN) for index in range(3)}
    newer = SPECULATORS_CONFIG | {"fc_norm": True, "norm_output": True}
    config = found(publish(tmp_path / "3.1", eagle3_tensors(norms, layer="layers.0"), newer), files).config
    assert (config.feature_norm, config.normed_feedback) == ("each", True)
    whole = {"input_norm.weight": torch.ones(3 * HIDDEN), "embed_tokens.weight": torch.ones(VOCAB, HIDDEN)}
    trained = SPECULATORS_CONFIG | {"norm_before_fc": True, "embed_requires_grad": True}
    config = found(publish(tmp_path / "trained", eagle3_tensors(whole, layer="layers.0"), trained), files).config
    assert (config.feature_norm, config.own_embeddings) == ("joint", True)


def test_deepspecs_layout(tmp_path: Path, files: ModelFiles) -> None:
    """Five states, norms of heads, all of the target's tokens."""
    norms = {f"layers.0.self_attn.{part}_norm.weight": torch.ones(HEAD_DIM) for part in "qk"}
    head = torch.ones(VOCAB, HIDDEN)
    changes: dict[str, torch.Tensor | None] = {"d2t": None, "t2d": None, "lm_head.weight": head, **norms}
    tensors = eagle3_tensors(changes, layer="layers.0", states=5)
    config = {name: value for name, value in EAGLE3_CONFIG.items() if name != "eagle_config"}
    config |= {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [0, 1, 1, 2, 2], "head_dim": HEAD_DIM}
    made = found(publish(tmp_path / "deepspec", tensors, config), files).config
    assert (made.state_entries, made.draft_vocab, made.head_norms) == ((1, 2, 2, 3, 3), 0, True)


def test_a_drafter_of_another_width_with_embeddings_of_its_own(tmp_path: Path, files: ModelFiles) -> None:
    table = {"embed_tokens.weight": torch.ones(VOCAB, 32)}
    config = EAGLE3_CONFIG | {"target_hidden_size": HIDDEN, "hidden_size": 32}
    made = found(publish(tmp_path / "narrow", eagle3_tensors(table, hidden=32), config), files).config
    assert (made.hidden_size, made.state_width, made.memory_width, made.own_embeddings) == (32, HIDDEN, 32, True)
    with pytest.raises(CheckpointError, match="has the hidden size 32 and no embeddings"):
        found(publish(tmp_path / "bare", eagle3_tensors(hidden=32), config), files)


@pytest.mark.parametrize(
    ("config", "entries"),
    [
        ({}, (2, 16, 29)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, (2, 16, 29)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}, (2, 16, 29)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (2, 16, 29)),
        ({"target_layer_ids": [1, 15, 28]}, (2, 16, 29)),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}, "moa_state_entries": [3, 4, 5]},
            (3, 4, 5),
        ),
    ],
    ids=["default", "speculators", "SpecForge", "SpecForge's default", "DeepSpec", "a user's own"],
)
def test_which_states_are_read(config: dict[str, Any], entries: tuple[int, ...]) -> None:
    assert _state_entries(Published({}, config, {"num_hidden_layers": 32}, "target", "drafter"), 3) == entries


def test_other_layers_make_another_checkpoint(tmp_path: Path, files: ModelFiles) -> None:
    folder = publish_eagle3(tmp_path / "eagle3")
    before = find_drafter(str(folder), files)
    publish(folder, eagle3_tensors(), EAGLE3_CONFIG | {"moa_state_entries": [0, 1, 2]}, pickled=True)
    after = find_drafter(str(folder), files)
    assert after != before
    assert load_checkpoint(after).config.state_entries == (0, 1, 2)


def test_a_device_needs_its_half_alone(tmp_path: Path, files: ModelFiles) -> None:
    path = find_drafter(str(publish_eagle3(tmp_path / "eagle3")), files)
    whole = load_checkpoint(path)
    alone = tmp_path / "fetched" / "drafter-0123.safetensors"
    alone.parent.mkdir()
    alone.write_bytes(path.read_bytes())
    half = load_checkpoint(alone)
    assert (half.fingerprint, half.config) == (whole.fingerprint, whole.config)
    assert set(whole.tensors) - set(half.tensors) == {"fc.weight"}
    target: Any = WeightReader(files)
    assert half.states(target)().token_ids is not None
    with pytest.raises(CheckpointError, match="This is the device's half of a drafter"):
        half.rows()
    with pytest.raises(CheckpointError, match="This is the device's half of a drafter"):
        check_drafter(alone, files)
    other = find_drafter(str(publish(tmp_path / "other", eagle3_tensors({"fc.weight": FC}), EAGLE3_CONFIG)), files)
    (alone.parent / "projection.safetensors").write_bytes((other.parent / "projection.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="is not the server's half of drafter-0123"):
        load_checkpoint(alone)


# ---------------------------------------------------------------- what is refused

OFFSETS = eagle3_tensors()["d2t"]
SWAPPED = OFFSETS.clone()
SWAPPED[3] += 2  # the token of the next one


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({"d2t": OFFSETS + 60}, {}, snapshot('In published d2t leads to tokens outside the vocabulary of 97. Give a drafter that was trained for this target, or --drafter none.')),
        ({"d2t": SWAPPED}, {}, snapshot('In published d2t leads to tokens that are not in ascending order, each once. Give a drafter that was trained for this target, or --drafter none.')),
        ({"d2t": OFFSETS.float()}, {}, snapshot('In published d2t holds no whole numbers of 64 or 32 bits. Give a drafter that was trained for this target, or --drafter none.')),
        ({"d2t": None}, {}, snapshot('published lacks the tensor d2t. Give a drafter that was trained for this target, or --drafter none.')),
        ({}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}, snapshot('published reads hidden state 4 of the target, tiny-llama3 has 3 layers. Give a drafter that was trained for this target, or --drafter none.')),
        ({}, {"eagle_aux_hidden_state_layer_ids": [1, 2]}, snapshot('published names 2 of the target\'s hidden states, its projection takes 3. Correct its config.json: "moa_state_entries" lists them, 0 the embeddings, e the output of layer e - 1.')),
        ({}, {"eagle_aux_hidden_state_layer_ids": ["a", 2, 3]}, snapshot("The config.json of published cannot be used: invalid literal for int() with base 10: 'a'. Fetch or train the checkpoint again.")),
        ({}, {"target_hidden_size": 4096}, snapshot('The EAGLE-3 checkpoint published is for a target whose hidden size is 4096, tiny-llama3 has 64. Give a drafter that was trained for this target, or --drafter none.')),
        ({"fc.weight": torch.ones(HIDDEN, 100)}, {}, snapshot('The EAGLE-3 checkpoint published is for a target of another hidden size: its projection takes 100 numbers a token, tiny-llama3 has states of 64. Give a drafter that was trained for this target, or --drafter none.')),
        ({"lm_head.weight": torch.ones(50, HIDDEN)}, {}, snapshot('In published d2t has the shape [40], a drafter for tiny-llama3 has [50]. Give a drafter that was trained for this target, or --drafter none.')),
        ({"lm_head.weight": None}, {}, snapshot('published lacks the tensor lm_head.weight. Give a drafter that was trained for this target, or --drafter none.')),
        ({"norm.weight": torch.full((HIDDEN,), torch.nan)}, {}, snapshot('In published norm.weight holds values that are not numbers. Fetch or train the checkpoint again.')),
        ({"mask_hidden": torch.ones(1, 3 * HIDDEN)}, {}, snapshot('published is a P-EAGLE checkpoint, whose drafts are made in one step: moa does not run it. Give an EAGLE-3 checkpoint of the same target.')),
        ({}, {"layer_types": ["sliding_attention"]}, snapshot('published has layers that see a window of the text only (sliding_attention): moa does not compute that. Give another EAGLE-3 checkpoint of the same target.')),
        ({}, {"norm_output": False}, snapshot('published has no norm before its head (norm_output is false): moa does not compute that. Give another EAGLE-3 checkpoint of the same target.')),
        ({}, {"hidden_act": "gelu"}, snapshot('published has the activation gelu, moa computes silu. Give a drafter that was trained for this target, or --drafter none.')),
    ],
    ids=[
        "tokens beyond the vocabulary", "a token twice", "offsets in floats", "no offsets",
        "a layer too many", "too few layers", "no numbers", "another width", "half a state", "a head of other tokens",
        "no head", "not a number", "P-EAGLE", "windows", "no norm before the head", "activation",
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, files: ModelFiles, tensors: dict[str, torch.Tensor | None], config: dict[str, Any], message: str
) -> None:
    publish(tmp_path / "published", eagle3_tensors(tensors), EAGLE3_CONFIG | config)
    with raises(CheckpointError, message):
        find_drafter("published", files)
    assert not list((tmp_path / "cache" / "drafters").glob("*/drafter.safetensors"))
