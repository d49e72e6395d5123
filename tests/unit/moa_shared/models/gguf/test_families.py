"""Each family out of a GGUF file: the weights and the logits of the model that it was written from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_kernels.library import library
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import load_target_model, resolve
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.header import read_header
from moa_shared.models.network.network import Network
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.weights.weights import WeightReader

from tests.support.families import GGUF_FAMILIES, tiny_in_gguf
from tests.support.family_gguf import write_family_gguf
from tests.support.messages import says
from tests.support.tiny_models import SIZES

pytestmark = pytest.mark.torch

TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(50)]
needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("tiny", path.parent, make_config(read_header(path)), (path,), "", "")


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_the_weights_are_those_of_the_model(tmp_path: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    reader = WeightReader(files_of(write_family_gguf(model, tmp_path / "tiny.gguf")))
    expected = model.state_dict()
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(reader.names()) == expected.keys() - tied
    for name, tensor in expected.items():
        np.testing.assert_allclose(reader.array(name), tensor.numpy(), rtol=0, atol=2e-7, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_the_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    files = files_of(write_family_gguf(model, tmp_path / "tiny.gguf"))
    network = Network(WeightReader(files), files.config, plain=True)
    target = KernelTarget(network, SIZES["max_position_embeddings"], kv="f32")
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(target.forward(target.new_cache(), TEXT).logits, expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", ["llama 3", "llama, linear", "qwen 2", "qwen 3"])
def test_the_torch_levels_compute_scaled_positions(tmp_path: Path, cache: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    files = resolve(str(write_family_gguf(model, tmp_path / "tiny.gguf")), cache)
    target = TorchTarget(load_target_model(files))
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(target.forward(target.new_cache(), TEXT).logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.sliding_window_pattern": [True] * 6}, "TMP/tiny.gguf has a last layer with a window, which no"),
        ({"attention.sliding_window_pattern": [True, False]}, "The GGUF file TMP/tiny.gguf does not say in"),
        ({"attention.shared_kv_layers": 6}, "TMP/tiny.gguf shares the keys and values of 6 of 6 layers, which no"),
        ({"feed_forward_length": [96, 96, 96, 192, 96, 192]}, "TMP/tiny.gguf has MLPs of the widths [96, 96, 96,"),
        ({"feed_forward_length": [96, 96]}, "The GGUF file TMP/tiny.gguf says gemma4.feed_forward_length = '[96,"),
        ({"attention.head_count_kv": [2, 3, 2, 2, 2, 2]}, "The config.json of tiny.gguf has 4 query heads over 3"),
        ({"rope.dimension_count_swa": 16}, "TMP/tiny.gguf rotates 16 of a head's 32 numbers, which no Gemma 4 that"),
        ({"rope.freq_base_swa": None}, "The GGUF file TMP/tiny.gguf does not set gemma4.rope.freq_base_swa"),
    ],
)
def test_what_no_gemma_4_says_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    model = tiny_in_gguf("gemma 4 with embeddings by layer")
    path = write_family_gguf(model, tmp_path / "tiny.gguf", **changes)
    with says(ModelSourceError, message):
        make_config(read_header(path))
