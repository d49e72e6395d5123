"""Published checkpoints by file, folder and hub id: what they become, and what is refused in which words."""

import builtins
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from moa_server.loading import check_drafter
from moa_shared.drafter.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.kinds.config import Published
from moa_shared.drafter.kinds.eagle import _state_entries
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles, WeightReader, resolve

from tests.support.published_drafters import (
    EAGLE3_CONFIG,
    EAGLE3_VOCAB,
    EAGLE_CONFIG,
    HEAD_DIM,
    HIDDEN,
    MOA_CONFIG,
    SPECULATORS_CONFIG,
    THETA,
    eagle3_tensors,
    eagle_tensors,
    moa_tensors,
    publish,
    publish_eagle,
    publish_eagle3,
    publish_moa,
    publish_speculator,
    save_llama3,
)

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return resolve(
        str(save_llama3(tmp_path_factory.mktemp("tiny-llama3", numbered=False))), tmp_path_factory.mktemp("cache")
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def found(folder: Path, files: ModelFiles) -> Checkpoint:
    return load_checkpoint(find_drafter(str(folder), files))


@pytest.mark.parametrize("how", [{}, {"shards": 3}, {"pickled": False}, {"pickled": False, "shards": 2}])
def test_the_same_eagle_tensors_become_the_same_drafter(tmp_path: Path, files: ModelFiles, how: dict[str, Any]) -> None:
    checkpoint = found(publish_eagle(tmp_path / "eagle", **how), files)
    config = checkpoint.config
    assert (config.kind, config.input_norm, config.fc_bias, config.draft_vocab) == ("eagle2", False, False, 0)
    assert (config.sa_kv_heads, config.sa_mlp, config.rope_parameters["rope_theta"]) == (2, 96, THETA)
    published = eagle_tensors()
    assert len(checkpoint.tensors) == 9  # the tenth, the embeddings, is the target's
    np.testing.assert_array_equal(checkpoint.tensors["spec_model_fc.weight"], published["fc.weight"].float().numpy())
    np.testing.assert_array_equal(
        checkpoint.tensors["spec_model.mlp.down_proj.weight"], published["layers.0.mlp.down_proj.weight"].float()
    )
    assert checkpoint.fingerprint == found(publish_eagle(tmp_path / "as published"), files).fingerprint


def test_a_mixture_of_attentions(tmp_path: Path, files: ModelFiles) -> None:
    checkpoint = found(publish_moa(tmp_path / "moa"), files)
    config = checkpoint.config
    assert (config.kind, config.reused_layers, config.unscaled_memory_rope) == ("moa", 0, False)
    assert (config.sa_kv_heads, config.sa_mlp, config.ca_kv_heads, config.ca_mlp) == (1, 64, 1, 64)
    assert (config.lsa_heads, config.lsa_kv_heads, config.lsa_mlp) == (4, 2, 32)
    assert len(checkpoint.tensors) == 29
    np.testing.assert_array_equal(checkpoint.tensors["Ekv2E.bias"], moa_tensors()["Ekv2E.bias"].float().numpy())
    changes = {"target_layer_inference": 1, "rope_scaling": {"type": "linear", "factor": 2.0}}
    config = found(publish(tmp_path / "scaled", moa_tensors(), MOA_CONFIG | changes), files).config
    assert (config.reused_layers, config.unscaled_memory_rope) == (1, True)
    assert config.rope_parameters == {"rope_type": "linear", "factor": 2.0, "rope_theta": THETA}


def test_an_eagle_with_biases_and_an_input_norm(tmp_path: Path, files: ModelFiles) -> None:
    biases = {f"layers.0.self_attn.{part}_proj.bias": torch.ones(128 if part == "q" else 64) for part in "qkv"}
    more = biases | {"fc.bias": torch.ones(HIDDEN), "layers.0.input_layernorm.weight": torch.ones(HIDDEN)}
    config = found(publish(tmp_path / "eagle", eagle_tensors(**more), EAGLE_CONFIG), files).config
    assert (config.fc_bias, config.qkv_bias, config.input_norm) == (True, True, True)


def test_by_hub_id_it_is_fetched_with_its_pickle(
    tmp_path: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = publish_eagle(tmp_path / "snapshot")
    asked: dict[str, Any] = {}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    path = find_drafter("some/EAGLE-tiny@v1", files)
    assert (asked["repo_id"], asked["revision"]) == ("some/EAGLE-tiny", "v1")
    assert {"config.json", "*.bin", "*.safetensors"} <= set(asked["allow_patterns"])
    assert path == find_drafter(str(folder), files)


def test_it_is_converted_once_and_files_next_to_it_come_along(tmp_path: Path, files: ModelFiles) -> None:
    folder = publish_eagle(tmp_path / "eagle")
    path = find_drafter(str(folder), files)
    made = path.stat().st_mtime_ns
    (folder / "confidence.json").write_text("{}")
    for again in (folder / "pytorch_model.bin", path, path.parent):
        assert find_drafter(str(again), files) == path
    assert (path.stat().st_mtime_ns, (path.parent / "confidence.json").read_text()) == (made, "{}")


FC, UP, DOWN = "fc.weight", "layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight"
KNOWN = "moa takes its own checkpoints, and these as they are published: Gemma 4 assistant, DFlash, DSpark"
OFFSETS = eagle3_tensors()["d2t"]
SWAPPED = OFFSETS.clone()
SWAPPED[3] += 2  # the token of the next one
EAGLE_REFUSALS: list[tuple[dict[str, torch.Tensor | None], dict[str, Any], str]] = [
    ({FC: torch.ones(4096, 8192)}, {}, "whose hidden_size is 4096, tiny-llama3 has 64"),
    ({"embed_tokens.weight": torch.ones(128, HIDDEN)}, {}, "whose vocab_size is 128, tiny-llama3 has 97"),
    ({}, {"num_attention_heads": 8}, "whose num_attention_heads is 8, tiny-llama3 has 4"),
    ({UP: None}, {}, "published lacks the tensor spec_model.mlp.up_proj.weight"),
    ({UP: torch.ones(90, HIDDEN), DOWN: None}, {}, "lacks the tensor spec_model.mlp.down_proj.weight"),
    ({DOWN: torch.ones(HIDDEN, 90)}, {}, r"has the shape \[64, 90\], a drafter for .* has \[64, 96\]"),
    ({"layers.1.mlp.x": torch.ones(96)}, {}, f"layers.1.mlp.x, which no EAGLE-2 drafter has. {KNOWN}"),
    ({UP: torch.ones(96, HIDDEN).to(torch.float8_e4m3fn)}, {}, "moa takes no quantised drafter"),
]
EAGLE3_REFUSALS: list[tuple[dict[str, torch.Tensor | None], dict[str, Any], str]] = [
    ({"d2t": OFFSETS + 60}, {}, "d2t leads to tokens outside the vocabulary of 97"),
    ({"d2t": SWAPPED}, {}, "d2t leads to tokens that are not in ascending order"),
    ({"d2t": OFFSETS.float()}, {}, "d2t holds no whole numbers of 64 or 32 bits"),
    ({"d2t": None}, {}, "published lacks the tensor draft_ids"),
    ({}, {"eagle_aux_hidden_state_layer_ids": ["a"]}, "The config.json of .*published cannot be used: invalid"),
    ({}, {"target_hidden_size": 4096}, "whose hidden_size is 4096, tiny-llama3 has 64"),
    ({FC: torch.ones(HIDDEN, 100)}, {}, "takes 100 numbers a token, tiny-llama3 has states of 64"),
    ({"lm_head.weight": torch.ones(50, HIDDEN)}, {}, r"d2t has the shape \[40\], a drafter for .* has \[50\]"),
    ({"norm.weight": torch.full((HIDDEN,), torch.nan)}, {}, "norm.weight holds values that are not numbers"),
    ({"mask_hidden": torch.ones(1, 3 * HIDDEN)}, {}, "in one step .P-EAGLE.: moa does not compute that"),
    ({}, {"norm_output": False}, "no norm before its head"),
    ({}, {"hidden_act": "gelu"}, "the activation gelu"),
]


def changed(changes: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """EAGLE's tensors with some replaced or left out."""
    tensors = eagle_tensors() | {name: tensor for name, tensor in changes.items() if tensor is not None}
    return {name: tensor for name, tensor in tensors.items() if changes.get(name, tensor) is not None}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        *((changed(tensors), EAGLE_CONFIG | config, message) for tensors, config, message in EAGLE_REFUSALS),
        *((eagle3_tensors(tensors), EAGLE3_CONFIG | config, message) for tensors, config, message in EAGLE3_REFUSALS),
        (moa_tensors(), MOA_CONFIG | {"disable_LSA": True}, r"has no layer self-attention \(disable_LSA\)"),
        ({f"model.{UP}": torch.ones(2, 2)}, EAGLE_CONFIG, f"published is a whole language model.*{KNOWN}"),
        ({"medusa_head.0.weight": torch.ones(2, 2)}, {}, f"holds tensors such as medusa_head.0.weight.*{KNOWN}"),
    ],
)
@pytest.mark.parametrize("pickled", [True, False], ids=["bin", "safetensors"])
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, files: ModelFiles, tensors: Any, config: dict[str, Any], message: str, pickled: bool
) -> None:
    publish(tmp_path / "published", tensors, config, pickled=pickled)
    with pytest.raises(CheckpointError, match=message):
        find_drafter(str(tmp_path / "published"), files)
    assert not list((tmp_path / "cache" / "drafters").glob("*/drafter.safetensors"))


def test_a_pickle_that_is_more_than_tensors_is_not_run(tmp_path: Path, files: ModelFiles) -> None:
    folder = publish_eagle(tmp_path / "eagle")
    path = folder / "pytorch_model.bin"
    torch.save({"fc.weight": Path("x")}, path)
    with pytest.raises(CheckpointError, match=r"is corrupt, or holds more than tensors, which is not read"):
        find_drafter(str(folder), files)
    torch.save(["fc.weight"], path)
    with pytest.raises(CheckpointError, match="bin holds something other than tensors by name"):
        find_drafter(str(folder), files)


def test_a_pickle_without_torch(tmp_path: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *arguments, **options)

    folder = publish_eagle(tmp_path / "eagle")
    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(CheckpointError, match="bin is pickled, and reading it takes torch, which is not installed"):
        find_drafter(str(folder), files)


def test_folders_that_hold_no_whole_checkpoint(tmp_path: Path, files: ModelFiles) -> None:
    with pytest.raises(CheckpointError, match="holds no drafter: none of drafter"):
        find_drafter(str(tmp_path), files)
    folder = publish_eagle(tmp_path / "eagle", shards=2)
    next(folder.glob("*00002*.bin")).unlink()
    with pytest.raises(CheckpointError, match="json names pytorch_model-00002-of-00002"):
        find_drafter(str(folder), files)
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="json cannot be read: 'weight_map"):
        find_drafter(str(folder), files)
    (publish_eagle(tmp_path / "bare") / "config.json").unlink()
    with pytest.raises(CheckpointError, match="bare holds no config"):
        find_drafter(str(tmp_path / "bare"), files)


def test_specforges_layout(tmp_path: Path, files: ModelFiles) -> None:
    made = found(publish_eagle3(tmp_path / "eagle3"), files)
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
    whole = {"input_norm.weight": torch.ones(3 * HIDDEN), "embed_tokens.weight": torch.ones(97, HIDDEN)}
    trained = SPECULATORS_CONFIG | {"norm_before_fc": True, "embed_requires_grad": True}
    config = found(publish(tmp_path / "trained", eagle3_tensors(whole, layer="layers.0"), trained), files).config
    assert (config.feature_norm, config.own_embeddings) == ("joint", True)


def test_deepspecs_layout(tmp_path: Path, files: ModelFiles) -> None:
    """Five states, norms of heads, all of the target's tokens."""
    changes: dict[str, torch.Tensor | None] = {"d2t": None, "t2d": None, "lm_head.weight": torch.ones(97, HIDDEN)}
    changes |= {f"layers.0.self_attn.{part}_norm.weight": torch.ones(HEAD_DIM) for part in "qk"}
    config = {name: value for name, value in EAGLE3_CONFIG.items() if name != "eagle_config"}
    config |= {"target_layer_ids": [0, 1, 1, 2, 2], "head_dim": HEAD_DIM}
    tensors = eagle3_tensors(changes, layer="layers.0", states=5)
    made = found(publish(tmp_path / "deepspec", tensors, config), files).config
    assert (made.state_entries, made.draft_vocab, made.head_norms) == ((1, 2, 2, 3, 3), 0, True)


def test_a_drafter_of_another_width_with_embeddings_of_its_own(tmp_path: Path, files: ModelFiles) -> None:
    table = {"embed_tokens.weight": torch.ones(97, 32)}
    config = EAGLE3_CONFIG | {"target_hidden_size": HIDDEN, "hidden_size": 32}
    made = found(publish(tmp_path / "narrow", eagle3_tensors(table, hidden=32), config), files).config
    assert (made.hidden_size, made.state_width, made.memory_width, made.own_embeddings) == (32, HIDDEN, 32, True)
    with pytest.raises(CheckpointError, match="has the hidden size 32 and no embeddings"):
        found(publish(tmp_path / "bare", eagle3_tensors(hidden=32), config), files)


SPECFORGE = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}


@pytest.mark.parametrize(
    ("config", "entries"),
    [
        ({}, (2, 16, 29)),
        ({"eagle_aux_hidden_state_layer_ids": [3, 16, 29]}, (3, 16, 29)),
        (SPECFORGE, (2, 16, 29)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (2, 16, 29)),
        ({"target_layer_ids": [1, 15, 28]}, (2, 16, 29)),
        ({**SPECFORGE, "moa_state_entries": [3, 4, 5]}, (3, 4, 5)),
    ],
)
def test_which_states_are_read(config: dict[str, Any], entries: tuple[int, ...]) -> None:
    target = EAGLE3_CONFIG | {"num_hidden_layers": 32}
    of = Published({}, config, target, "target", "drafter")
    assert _state_entries(of, {"fc.weight": (HIDDEN, 3 * HIDDEN)}) == entries


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
    other = find_drafter(
        str(publish(tmp_path / "other", eagle3_tensors({"fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN)}), EAGLE3_CONFIG)),
        files,
    )
    (alone.parent / "projection.safetensors").write_bytes((other.parent / "projection.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="is not the server's half of drafter-0123"):
        load_checkpoint(alone)
