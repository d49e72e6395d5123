from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import InternalError, ModelSourceError
from transformers import PreTrainedModel

from tests.support.tiny_models import tiny_kernel_target, tiny_model
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.torch

PREFIX = [5, 17, 3, 88, 41, 41, 2]
TREE = [-1, 0, 0, 1, 1, 2, 3, 5, 5, 0]
TREE_TOKENS = [11, 12, 13, 14, 15, 16, 17, 18, 19, 12]
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-5}


def bare(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Logits of transformers' own forward over the whole text."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def test_generate_still_works_on_a_model_whose_attention_is_ours() -> None:
    prompt = torch.tensor([PREFIX])
    expected = torch_model().generate(prompt, max_new_tokens=12, do_sample=False)
    target = TorchTarget(torch_model())
    assert target.model.generate(prompt, max_new_tokens=12, do_sample=False).tolist() == expected.tolist()


def test_a_forward_that_fails_half_way_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TorchTarget(torch_model())
    cache = target.new_cache()
    target.forward(cache, PREFIX)

    def out_of_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(target.model.model.layers[1].mlp, "forward", out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            target.forward(cache, TREE_TOKENS, TREE)
    assert cache.length == len(PREFIX)
    expected = bare(torch_model(), [*PREFIX, 9])
    np.testing.assert_allclose(target.forward(cache, [9]).logits[-1], expected[-1], **CLOSE)


def test_rotary_scaling_that_depends_on_the_length_is_refused() -> None:
    model = torch_model(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    with pytest.raises(ModelSourceError, match="LlamaForCausalLM uses 'dynamic' rotary scaling"):
        TorchTarget(model)


def test_rotary_scaling_that_torch_chooses_again_as_a_text_grows_is_refused() -> None:
    model = torch_model()
    factors = [1.0] * (model.config.head_dim // 2)
    model.config.rope_parameters = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        "short_factor": factors, "long_factor": [2 * factor for factor in factors],
    }  # fmt: skip
    with pytest.raises(ModelSourceError, match="LlamaForCausalLM uses 'longrope' rotary scaling"):
        TorchTarget(model)


def test_the_kernels_cache_is_refused() -> None:
    with pytest.raises(InternalError, match="A forward of torch was given another backend's cache"):
        TorchTarget(torch_model()).forward(tiny_kernel_target(tiny_model()).new_cache(), PREFIX)


def test_forwards_of_several_threads_do_not_mix() -> None:
    target = TorchTarget(torch_model())
    texts = [[seed, *range(seed, seed + 20)] for seed in range(4)]

    def read(text: list[int]) -> np.ndarray:
        cache = target.new_cache()
        return np.concatenate([target.forward(cache, [token]).logits for token in text])

    with ThreadPoolExecutor(len(texts)) as threads:
        for text, logits in zip(texts, threads.map(read, texts), strict=True):
            np.testing.assert_allclose(logits, bare(torch_model(), text), **CLOSE)
