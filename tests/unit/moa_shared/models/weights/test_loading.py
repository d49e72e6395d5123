import json
from pathlib import Path

import pytest
import torch
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, load_part, load_target_model, part_names, resolve
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM, HEAD
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.support.messages import says
from tests.support.torch_models import rewrite

pytestmark = pytest.mark.torch


@pytest.fixture
def files(model_folder: Path, cache: Path) -> ModelFiles:
    return resolve(str(model_folder), cache)


def test_the_model_is_transformers_own(files: ModelFiles) -> None:
    expected = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32).state_dict()
    model = load_target_model(files)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    state = model.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_part_is_what_was_named(files: ModelFiles) -> None:
    names = part_names(files, last_layers=1)
    assert {EMBEDDINGS, FINAL_NORM, HEAD} < set(names)
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"2"}
    whole = load_file(files.weights[0])
    part = load_part(files, names)
    assert set(part) == set(names)
    assert all(torch.equal(part[name], whole[name]) for name in names)
    assert load_part(files, names, torch.bfloat16)[FINAL_NORM].dtype == torch.bfloat16
    assert not [name for name in part_names(files) if ".layers." in name]


def test_a_tied_head_is_the_embeddings(model_folder: Path, cache: Path) -> None:
    config = model_folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": True}))
    rewrite(model_folder, **{HEAD: None})
    files = resolve(str(model_folder), cache)
    part = load_part(files, part_names(files))
    assert torch.equal(part[HEAD], part[EMBEDDINGS])
    model = load_target_model(files)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_shards_and_the_single_file_are_the_same(files: ModelFiles, cache: Path) -> None:
    whole = load_target_model(files).state_dict()
    load_target_model(files).save_pretrained(files.folder, max_shard_size="20KB")
    files.weights[0].unlink(missing_ok=True)
    sharded = resolve(str(files.folder), cache)
    assert len(sharded.weights) > 1
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_target_model(sharded).state_dict().items())


def test_weights_that_lack_a_tensor(model_folder: Path, cache: Path) -> None:
    rewrite(model_folder, **{"model.layers.1.mlp.up_proj.weight": None})
    files = resolve(str(model_folder), cache)
    with says(ModelSourceError, "The weights of tiny-llama lack 1 tensors, model.layers.1.mlp.up_proj.weight"):
        load_target_model(files)
    with says(ModelSourceError, "The weights of tiny-llama hold no tensor model.layers.1.mlp.up_proj.weight"):
        load_part(files, ["model.layers.1.mlp.up_proj.weight"])


def test_weights_of_another_shape(model_folder: Path, cache: Path) -> None:
    rewrite(model_folder, **{FINAL_NORM: torch.ones(5)})
    files = resolve(str(model_folder), cache)
    with pytest.raises(ModelSourceError, match=r"do not fit its config\.json"):
        load_target_model(files)
