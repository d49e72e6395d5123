from pathlib import Path

import pytest
import torch
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, load_target_model, resolve
from moa_shared.models.storage.tensors import FINAL_NORM
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


def test_weights_that_lack_a_tensor(model_folder: Path, cache: Path) -> None:
    rewrite(model_folder, **{"model.layers.1.mlp.up_proj.weight": None})
    files = resolve(str(model_folder), cache)
    with says(ModelSourceError, "The weights of tiny-llama lack 1 tensors, model.layers.1.mlp.up_proj.weight"):
        load_target_model(files)


def test_weights_of_another_shape(model_folder: Path, cache: Path) -> None:
    rewrite(model_folder, **{FINAL_NORM: torch.ones(5)})
    files = resolve(str(model_folder), cache)
    with pytest.raises(ModelSourceError, match=r"do not fit its config\.json"):
        load_target_model(files)
