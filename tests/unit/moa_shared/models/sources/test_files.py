from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import ModelFiles, describe_folder
from safetensors.torch import load_file, save_file

from tests.support.messages import says

pytestmark = pytest.mark.torch


def describe(folder: Path, cache: Path) -> ModelFiles:
    return describe_folder(folder, "tiny", cache)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_is_described(model_folder: Path, cache: Path) -> None:
    files = describe(model_folder, cache)
    assert files.target_id == "tiny"
    assert files.weights == (model_folder / "model.safetensors",)
    assert files.config["hidden_size"] == 32
    assert len(files.fingerprint) == len(files.tokenizer_hash) == 64
    assert describe(model_folder, cache) == files


def test_the_fingerprint_follows_the_mathematics(model_folder: Path, cache: Path) -> None:
    first = describe(model_folder, cache).fingerprint
    change_config(model_folder, transformers_version="9.9", dtype="bfloat16", use_cache=False, something_new=1)
    assert describe(model_folder, cache).fingerprint == first
    change_config(model_folder, rms_norm_eps=0.5)
    second = describe(model_folder, cache).fingerprint
    assert second != first
    weights = load_file(model_folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    save_file(weights, model_folder / "model.safetensors", metadata={"format": "pt"})
    assert describe(model_folder, cache).fingerprint not in (first, second)


def shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"part-2.safetensors": names[::2], "part-1.safetensors": names[1::2]}
    for part, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / part, metadata={"format": "pt"})
    weight_map = {name: part for part, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_found_by_the_index(model_folder: Path, cache: Path) -> None:
    shard(model_folder)
    files = describe(model_folder, cache)
    assert [path.name for path in files.weights] == ["part-1.safetensors", "part-2.safetensors"]
    (model_folder / "part-2.safetensors").unlink()
    with says(ModelSourceError, "TMP/tiny-llama/model.safetensors.index.json names part-2.safetensors, which"):
        describe(model_folder, cache)


@pytest.mark.parametrize(
    "index", ["{", "[" * 100_000, "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/passwd"}}']
)
def test_an_index_that_makes_no_sense(model_folder: Path, cache: Path, index: str) -> None:
    shard(model_folder)
    (model_folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelSourceError, match=r"cannot be read|is not there"):
        describe(model_folder, cache)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "The folder TMP/tiny-llama holds no config.json"),
        ("model.safetensors", "The folder TMP/tiny-llama holds no model.safetensors and no"),
        ("tokenizer.json", "The folder TMP/tiny-llama holds no tokenizer.json"),
    ],
)
def test_a_folder_without_one_of_its_files(model_folder: Path, cache: Path, missing: str, message: str) -> None:
    (model_folder / missing).unlink()
    with says(ModelSourceError, message):
        describe(model_folder, cache)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TMP/tiny-llama/config.json is not valid JSON: Expecting property name"),
        ("[" * 100_000, "TMP/tiny-llama/config.json is not valid JSON: its brackets are nested too"),
        ("[1]", "TMP/tiny-llama/config.json is not a JSON object"),
    ],
)
def test_a_broken_configuration(model_folder: Path, cache: Path, text: str, message: str) -> None:
    (model_folder / "config.json").write_text(text)
    with says(ModelSourceError, message):
        describe(model_folder, cache)


def test_another_family_is_refused(model_folder: Path, cache: Path) -> None:
    change_config(model_folder, model_type="mamba")
    with says(ModelSourceError, "tiny is of the model family 'mamba', which moa does not serve"):
        describe(model_folder, cache)


def test_weights_of_another_dtype_are_other_weights(model_folder: Path, cache: Path) -> None:
    first = describe(model_folder, cache).fingerprint
    weights = {
        name: tensor.to(torch.bfloat16) for name, tensor in load_file(model_folder / "model.safetensors").items()
    }
    save_file(weights, model_folder / "model.safetensors", metadata={"format": "pt"})
    assert describe(model_folder, cache).fingerprint != first
