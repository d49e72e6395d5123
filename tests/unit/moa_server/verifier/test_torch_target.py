"""The target in torch: where it is computed, each family as transformers computes it, and what fails in between."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from moa_server.verifier import torch_target
from moa_server.verifier.attention import PLAIN, AttentionShape, FlashInferAttention, SessionAttention
from moa_server.verifier.torch_target import TorchTarget, choose_attention, choose_device, warm_up
from moa_shared.errors import InternalError, ModelSourceError
from moa_shared.models.network import served
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.served import is_for_torch
from structlog.testing import capture_logs
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from tests.support.families import DENSE_FAMILIES, MIXTURES, tiny_dense, tiny_mixture
from tests.support.messages import steady
from tests.support.tiny_models import SIZES, Floats, tiny_kernel_target, tiny_model
from tests.support.torch_models import torch_model
from tests.unit.moa_server.verifier.paged_targets import paged_target

pytestmark = pytest.mark.torch

BF16 = torch.bfloat16
WINDOWS = "FlashInfer computes neither sliding windows nor caps of scores here"
TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(40)]
TREE = [-1, -1, 0, 0, 1, 2, 2, 5, 7, 8, 9, 10]  # deeper than a window
PATHS = ([1, 4], [0, 3], [0, 2, 6], [0, 2, 5, 7, 8, 9, 10, 11])
REFUSED = ("ministral", "ministral 3", "phi 4", "gemma 4", "gemma 4, 12B", "gemma 4 with embeddings by layer")
COMPUTED = tuple(family for family in DENSE_FAMILIES if family not in REFUSED)
CLOSE: dict[str, Any] = {"atol": 3e-4, "rtol": 0}


def bare(model: PreTrainedModel, tokens: list[int]) -> Floats:
    """Logits of transformers' own forward over the whole text, with its own attention."""
    with torch.no_grad():
        logits: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


@pytest.mark.parametrize(
    ("named", "level", "sees", "device"),
    [
        ("auto", "bf16", True, "cuda"),
        ("auto", "bf16", False, "cpu"),
        ("auto", "float32", True, "cpu"),
        ("cuda", "float32", True, "cuda"),
        ("cpu", "bf16", True, "cpu"),
    ],
)
def test_the_device(monkeypatch: pytest.MonkeyPatch, named: str, level: str, sees: bool, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    assert choose_device(named, level) == device


@pytest.mark.parametrize(
    ("installed", "dtype", "head_dim", "shape", "reason"),
    [
        (False, BF16, 64, PLAIN, "flashinfer is not installed: PYTHON -m pip install --editable 'CHECKOUT[cuda]'"),
        (True, torch.float32, 64, PLAIN, "FlashInfer does not compute in float32"),
        (True, BF16, 96, PLAIN, "FlashInfer has no kernels for heads of 96"),
        (True, BF16, 64, AttentionShape((0, 5)), WINDOWS),
        (True, BF16, 64, AttentionShape(cap=2.0), WINDOWS),
        (True, BF16, 128, PLAIN, None),
    ],
)
def test_torch_s_attention_is_taken_where_flashinfer_is_not_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    dtype: torch.dtype,
    head_dim: int,
    shape: AttentionShape,
    reason: str | None,
) -> None:
    monkeypatch.setattr(torch_target, "find_spec", lambda _: object() if installed else None)
    with capture_logs() as logs:
        chosen = choose_attention(dtype, head_dim, shape)
    assert chosen is (FlashInferAttention if reason is None else SessionAttention)
    assert [steady(entry["reason"]) for entry in logs] == ([] if reason is None else [reason])


def test_the_shapes_of_the_first_forwards_are_recorded_and_leave_no_pages() -> None:
    target = paged_target(torch_model(max_position_embeddings=40), "flashinfer")
    warm_up(target)
    cache = target.new_cache()
    cache.reserve(target.kv_bytes() // cache.most_nbytes(1) * 64)  # all pages


def test_generate_still_works_on_a_model_whose_attention_is_ours() -> None:
    prompt = torch.tensor([TEXT[:7]])
    expected = torch_model().generate(prompt, max_new_tokens=12, do_sample=False)
    target = TorchTarget(torch_model())
    assert target.model.generate(prompt, max_new_tokens=12, do_sample=False).tolist() == expected.tolist()


def test_a_forward_that_fails_half_way_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TorchTarget(torch_model())
    cache = target.new_cache()
    target.forward(cache, TEXT[:7])
    with monkeypatch.context() as patch:
        patch.setattr(target.model.model.layers[1].mlp, "forward", Mock(side_effect=RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            target.forward(cache, TEXT[: len(TREE)], TREE)
    assert cache.length == 7
    expected = bare(torch_model(), [*TEXT[:7], 9])
    np.testing.assert_allclose(target.forward(cache, [9]).logits[-1], expected[-1], **CLOSE)
    with pytest.raises(InternalError, match="A forward of torch was given another backend's cache"):
        target.forward(tiny_kernel_target(tiny_model()).new_cache(), TEXT)


def test_forwards_of_several_threads_do_not_mix() -> None:
    target = TorchTarget(torch_model())
    texts = [[seed, *range(seed, seed + 20)] for seed in range(4)]

    def read(text: list[int]) -> np.ndarray:
        cache = target.new_cache()
        return np.concatenate([target.forward(cache, [token]).logits for token in text])

    with ThreadPoolExecutor(len(texts)) as threads:
        for text, logits in zip(texts, threads.map(read, texts), strict=True):
            np.testing.assert_allclose(logits, bare(torch_model(), text), **CLOSE)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_scaling_that_depends_on_the_length_is_refused(kind: str) -> None:
    model = torch_model()
    factors = [1.0] * (model.config.head_dim // 2)
    model.config.rope_parameters = {
        "rope_type": kind, "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        "short_factor": factors, "long_factor": [2 * factor for factor in factors],
    }  # fmt: skip
    with pytest.raises(ModelSourceError, match=f"LlamaForCausalLM .*'{kind}'"):
        TorchTarget(model)


@pytest.mark.parametrize("family", COMPUTED)
def test_a_text_whole_and_in_parts_and_a_tree_as_its_paths(family: str) -> None:
    model, target = tiny_dense(family), TorchTarget(tiny_dense(family))
    expected, cache = bare(model, TEXT), target.new_cache()
    for start, stop in ((0, 3), (3, 20), (20, 21), (21, 40)):
        got = target.forward(cache, TEXT[start:stop]).logits
        np.testing.assert_allclose(got, expected[start:stop], **CLOSE)
    for length in (2, 30):
        cache = target.new_cache()
        np.testing.assert_allclose(target.forward(cache, TEXT[:length]).logits, expected[:length], **CLOSE)
        got = target.forward(cache, TEXT[: len(TREE)], TREE).logits
        for path in PATHS:
            of_path = bare(model, TEXT[:length] + [TEXT[node] for node in path])[length:]
            np.testing.assert_allclose(got[path], of_path, **CLOSE)


@pytest.mark.parametrize("family", COMPUTED)
def test_bfloat16_stays_close(family: str) -> None:
    target, expected = TorchTarget(tiny_dense(family).to(BF16)), bare(tiny_dense(family), TEXT)
    got = target.forward(target.new_cache(), TEXT).logits
    cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert np.median(cosines) > 0.99


@pytest.mark.parametrize("family", [*REFUSED, *MIXTURES])
def test_others_are_refused_by_name(family: str) -> None:
    model = tiny_dense(family) if family in REFUSED else tiny_mixture(family)
    with pytest.raises(ModelSourceError, match=r"which the torch levels .*\.") as caught:
        TorchTarget(model)
    assert caught.value.hint == "Give --execution int8."


def test_every_family_is_computed_or_refused() -> None:
    computed = {tiny_dense(family).config.model_type for family in COMPUTED} | {"llama"}
    assert {family for family in FAMILIES if is_for_torch({"model_type": family})} == computed
    assert set(served._TORCH_ACTIVATIONS) <= set(ACT2FN)
