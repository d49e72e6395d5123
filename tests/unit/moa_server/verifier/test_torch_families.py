"""Each family on the torch levels as transformers computes it: whole texts, texts in parts, and trees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import resolve
from moa_shared.models.families import FAMILIES
from moa_shared.models.network import served
from moa_shared.models.network.served import is_for_torch
from moa_shared.programs.progress import SilentProgress
from transformers.activations import ACT2FN

from tests.support.families import DENSE_FAMILIES, MIXTURES, tiny_dense, tiny_in_gguf, tiny_mixture
from tests.support.family_gguf import write_family_gguf
from tests.support.tiny_models import SIZES, Floats

pytestmark = pytest.mark.torch

TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(40)]
TREE = [-1, -1, 0, 0, 1, 2, 2, 5, 7, 8, 9, 10]  # deeper than a window
PATHS = ([1, 4], [0, 3], [0, 2, 6], [0, 2, 5, 7, 8, 9, 10, 11])
REFUSED = ("ministral", "ministral 3", "phi 4", "gemma 4", "gemma 4, 12B", "gemma 4 with embeddings by layer")
COMPUTED = tuple(family for family in DENSE_FAMILIES if family not in REFUSED)
CLOSE: dict[str, Any] = {"atol": 3e-4, "rtol": 0}


def bare(family: str, tokens: list[int]) -> Floats:
    """Logits of transformers' own forward over the whole text, with its own attention."""
    with torch.no_grad():
        logits: Floats = tiny_dense(family)(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


@pytest.mark.parametrize("family", COMPUTED)
def test_a_text_whole_and_in_parts(family: str) -> None:
    target, expected = TorchTarget(tiny_dense(family)), bare(family, TEXT)
    np.testing.assert_allclose(target.forward(target.new_cache(), TEXT).logits, expected, **CLOSE)
    cache = target.new_cache()
    for start, stop in ((0, 3), (3, 20), (20, 21), (21, 40)):
        got = target.forward(cache, TEXT[start:stop]).logits
        np.testing.assert_allclose(got, expected[start:stop], **CLOSE)


@pytest.mark.parametrize("family", COMPUTED)
def test_a_tree_is_its_paths(family: str) -> None:
    target = TorchTarget(tiny_dense(family))
    for length in (2, 30):
        cache = target.new_cache()
        target.forward(cache, TEXT[:length])
        got = target.forward(cache, TEXT[: len(TREE)], TREE).logits
        for path in PATHS:
            expected = bare(family, TEXT[:length] + [TEXT[node] for node in path])[length:]
            np.testing.assert_allclose(got[path], expected, **CLOSE)


@pytest.mark.parametrize("family", COMPUTED)
def test_bfloat16_stays_close(family: str) -> None:
    target, expected = TorchTarget(tiny_dense(family).to(torch.bfloat16)), bare(family, TEXT)
    got = target.forward(target.new_cache(), TEXT).logits
    cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert np.median(cosines) > 0.99


@pytest.mark.parametrize(
    "family", ["llama 3", "qwen 3", "gemma 2", "gemma 3", "phi 3", "olmo 3", "smollm 3", "granite"]
)
def test_a_gguf_file_is_loaded_for_torch(family: str, tmp_path: Path) -> None:
    model = tiny_in_gguf(family)
    files = resolve(str(write_family_gguf(model, tmp_path / "tiny.gguf")), tmp_path / "cache")
    with torch.no_grad():
        expected = model(torch.tensor([TEXT]), use_cache=False).logits[0].numpy()
    loaded = load_execution(files, ServerSettings(execution="float32", threads=1), SilentProgress())
    got = loaded.target.forward(loaded.target.new_cache(), TEXT).logits
    np.testing.assert_allclose(got, expected, **CLOSE)


@pytest.mark.parametrize("family", [*REFUSED, *MIXTURES])
def test_others_are_refused_by_name(family: str) -> None:
    model = tiny_dense(family) if family in REFUSED else tiny_mixture(family)
    with pytest.raises(ModelSourceError, match=r"which the torch levels .*\.") as caught:
        TorchTarget(model)
    assert caught.value.hint == "Give --execution int8."


def test_every_family_is_computed_or_refused() -> None:
    computed = {tiny_dense(family).config.model_type for family in COMPUTED} | {"llama"}
    assert {family for family in FAMILIES if is_for_torch({"model_type": family})} == computed


def test_activations_that_pass_are_transformers_own() -> None:
    assert set(served._TORCH_ACTIVATIONS) <= set(ACT2FN)
