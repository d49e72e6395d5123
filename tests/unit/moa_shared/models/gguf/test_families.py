"""Each family out of a GGUF file: the weights and the logits of the model that it was written from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from moa_kernels.library import library
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.models import load_target_model, resolve
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.header import read_header
from moa_shared.models.network.network import Network
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.weights.weights import WeightReader

from tests.support.dense_families import GGUF_FAMILIES, tiny_in_gguf
from tests.support.dense_gguf import write_dense_gguf
from tests.support.tiny_models import SIZES

pytestmark = pytest.mark.torch

TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(50)]
needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("tiny", path.parent, make_config(read_header(path)), (path,), "", "")


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_the_weights_are_those_of_the_model(tmp_path: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    reader = WeightReader(files_of(write_dense_gguf(model, tmp_path / "tiny.gguf")))
    expected = model.state_dict()
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(reader.names()) == expected.keys() - tied
    for name, tensor in expected.items():
        np.testing.assert_allclose(reader.array(name), tensor.numpy(), rtol=0, atol=2e-7, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_the_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    files = files_of(write_dense_gguf(model, tmp_path / "tiny.gguf"))
    network = Network(WeightReader(files), files.config, plain=True)
    target = KernelTarget(network, SIZES["max_position_embeddings"], kv="f32")
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(target.forward(target.new_cache(), TEXT).logits, expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", ["llama 3", "llama, linear", "qwen 2", "qwen 3"])
def test_the_torch_levels_compute_scaled_positions(tmp_path: Path, cache: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    files = resolve(str(write_dense_gguf(model, tmp_path / "tiny.gguf")), cache)
    target = TorchTarget(load_target_model(files))
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(target.forward(target.new_cache(), TEXT).logits, expected, rtol=0, atol=1e-4)
