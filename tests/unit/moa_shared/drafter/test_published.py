"""Published checkpoints by file, folder and hub id: what they become, and what is refused in which words."""

import builtins
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles, resolve

from tests.support.messages import raises
from tests.support.published_drafters import (
    EAGLE_CONFIG,
    HIDDEN,
    MOA_CONFIG,
    THETA,
    eagle_tensors,
    moa_tensors,
    publish,
    publish_eagle,
    publish_moa,
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


# ---------------------------------------------------------------- what is taken


@pytest.mark.parametrize(
    "how",
    [{}, {"shards": 3}, {"pickled": False}, {"pickled": False, "shards": 2}],
    ids=["bin", "bin in shards", "safetensors", "safetensors in shards"],
)
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
    assert (config.kind, config.reused_layers, config.output_norm, config.unscaled_memory_rope) == (
        "moa",
        0,
        False,
        False,
    )
    assert (config.sa_kv_heads, config.sa_mlp, config.ca_kv_heads, config.ca_mlp) == (1, 64, 1, 64)
    assert (config.lsa_heads, config.lsa_kv_heads, config.lsa_mlp) == (4, 2, 32)
    assert len(checkpoint.tensors) == 29
    np.testing.assert_array_equal(checkpoint.tensors["Ekv2E.bias"], moa_tensors()["Ekv2E.bias"].float().numpy())


def test_with_reused_layers_and_scaled_positions(tmp_path: Path, files: ModelFiles) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    changes = {"target_layer_inference": 1, "rope_scaling": scaling}
    config = found(publish(tmp_path / "moa", moa_tensors(), MOA_CONFIG | changes), files).config
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
    assert find_drafter(str(folder / "pytorch_model.bin"), files) == path
    assert path.stat().st_mtime_ns == made
    assert (path.parent / "confidence.json").read_text() == "{}"


def test_our_own_files_and_folders_are_used_as_they_are(tmp_path: Path, files: ModelFiles) -> None:
    own = find_drafter(str(publish_eagle(tmp_path / "eagle")), files)
    assert find_drafter(str(own), files) == own
    assert find_drafter(str(own.parent), files) == own


# ---------------------------------------------------------------- what is refused


def changed(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """EAGLE's tensors with some replaced or left out."""
    tensors = eagle_tensors() | {name: tensor for name, tensor in changes.items() if tensor is not None}
    return {name: tensor for name, tensor in tensors.items() if changes.get(name, tensor) is not None}


FC, UP = "fc.weight", "layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (changed(**{FC: torch.ones(4096, 8192)}), {}, snapshot('The EAGLE checkpoint published is for a target whose hidden size is 4096, tiny-llama3 has 64. Give a drafter that was trained for this target, or --drafter none.')),
        (changed(**{"embed_tokens.weight": torch.ones(128, HIDDEN)}), {}, snapshot('The EAGLE checkpoint published is for a target whose vocabulary size is 128, tiny-llama3 has 97. Give a drafter that was trained for this target, or --drafter none.')),
        (changed(), {"num_attention_heads": 8}, snapshot('The EAGLE checkpoint published is for a target whose number of attention heads is 8, tiny-llama3 has 4. Give a drafter that was trained for this target, or --drafter none.')),
        (changed(**{UP: None}), {}, snapshot('published lacks the tensor layers.0.mlp.up_proj.weight. Give a drafter that was trained for this target, or --drafter none.')),
        (changed(**{UP: torch.ones(90, HIDDEN)}), {}, snapshot('In published layers.0.mlp.up_proj.weight has the shape [90, 64], a drafter for tiny-llama3 has [96, 64]. Give a drafter that was trained for this target, or --drafter none.')),
        (changed(**{"layers.1.mlp.up_proj.weight": torch.ones(96, HIDDEN)}), {}, snapshot("published holds layers.1.mlp.up_proj.weight, which no EAGLE drafter has. moa takes its own checkpoints, and these as they are published: DFlash, DSpark, Mixture of Attentions, EAGLE-3, EAGLE-2.")),
        (changed(**{UP: torch.ones(96, HIDDEN).to(torch.float8_e4m3fn)}), {}, snapshot('In published layers.0.mlp.up_proj.weight is none of float32, float16 and bfloat16: moa takes no quantised drafter. Give the checkpoint that it was made from.')),
        ({"model.layers.0.mlp.up_proj.weight": torch.ones(2, 2)}, {}, snapshot("published is a whole language model, not a drafter. moa takes its own checkpoints, and these as they are published: DFlash, DSpark, Mixture of Attentions, EAGLE-3, EAGLE-2.")),
        ({"medusa_head.0.weight": torch.ones(2, 2)}, {}, snapshot("published holds tensors such as medusa_head.0.weight, which are of no drafter that moa knows. moa takes its own checkpoints, and these as they are published: DFlash, DSpark, Mixture of Attentions, EAGLE-3, EAGLE-2.")),
    ],
    ids=[
        "hidden size", "vocabulary", "heads", "a tensor is missing", "a shape", "two layers", "8-bit floats",
        "a language model", "another method",
    ],
)  # fmt: skip
@pytest.mark.parametrize("pickled", [True, False], ids=["bin", "safetensors"])
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path,
    files: ModelFiles,
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any],
    message: str,
    pickled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(tmp_path / "published", tensors, EAGLE_CONFIG | config, pickled=pickled)
    monkeypatch.chdir(tmp_path)
    with raises(CheckpointError, message):
        find_drafter("published", files)
    assert not list((tmp_path / "cache" / "drafters").glob("*/drafter.safetensors"))


def test_an_ablation_of_a_mixture_of_attentions_is_refused(tmp_path: Path, files: ModelFiles) -> None:
    publish(tmp_path / "published", moa_tensors(), MOA_CONFIG | {"disable_LSA": True})
    with pytest.raises(CheckpointError, match=r"was trained without layer self-attention \(disable_LSA\)"):
        find_drafter(str(tmp_path / "published"), files)


def test_a_pickle_that_is_more_than_tensors_is_not_run(tmp_path: Path, files: ModelFiles) -> None:
    folder = publish_eagle(tmp_path / "eagle")
    torch.save({"fc.weight": Path("x")}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"is corrupt, or holds more than tensors, which is not read"):
        find_drafter(str(folder), files)
    torch.save(["fc.weight"], folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="bin holds something other than tensors by name"):
        find_drafter(str(folder), files)
    (folder / "pytorch_model.bin").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"is corrupt, or holds more than tensors, which is not read"):
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
