"""Each family as transformers computes it in float32: behind the kernels, in numpy, and closely with 8-bit weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from moa_kernels import Linear, Segment, Stack, norm
from moa_kernels.library import library
from moa_shared.models.families import FAMILIES
from moa_shared.models.network.layers import LayerEmbeddings, read_layer
from moa_shared.models.network.plan import plan_of
from moa_shared.models.network.served import check_family

from tests.support.dense_families import DENSE_FAMILIES, tiny_dense
from tests.support.mixtures import weights_of
from tests.support.tiny_models import SIZES, tiny_kernel_target
from tests.support.torch_models import from_torch

pytestmark = pytest.mark.torch

TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(50)]
Floats = npt.NDArray[np.float32]
needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")


def of_transformers(model: Any) -> Floats:
    with torch.no_grad():
        logits: Floats = model(torch.tensor([TEXT])).logits[0].numpy()
    return logits


def test_every_family_is_tested() -> None:
    tested = {tiny_dense(family).config.model_type for family in DENSE_FAMILIES}
    dense = {name for name, each in FAMILIES.items() if each.mixture is None or each.mixture.switch}
    assert tested | {"llama", "qwen2", "qwen3"} == dense


@needs_kernels
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_the_kernels_in_float32_compute_what_transformers_does(family: str) -> None:
    model = tiny_dense(family)
    check_family(model.config.to_dict(), family)
    target = tiny_kernel_target(from_torch(model), plain=True)
    got = target.forward(target.new_cache(), TEXT).logits
    np.testing.assert_allclose(got, of_transformers(model), rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_numpy_computes_what_transformers_does(family: str) -> None:
    model, weights = tiny_dense(family), weights_of(tiny_dense(family))
    plan, linear = plan_of(model.config.to_dict()), partial(Linear, reference=True)
    layers = [
        read_layer(weights, f"model.layers.{index}", linear, family=plan.family, plan=each)
        for index, each in enumerate(plan.layers)
    ]
    stack = Stack(plan.shape, layers, plan.rotaries, reference=True)
    rows = weights.rows("model.embed_tokens.weight", TEXT) * np.float32(plan.embedding_scale)
    width, embeddings = plan.shape.embedding, None
    if width:
        embeddings = LayerEmbeddings(weights, linear, len(layers), width, plan.shape.eps)(TEXT, rows)
    out, _ = stack.run(rows, [Segment.chain(stack.new_cache(kv="f32"), len(TEXT))], embeddings=embeddings)
    final = weights.array("model.norm.weight") + np.float32(plan.family.norm_offset)
    logits = norm(out, final, plan.shape.eps) @ weights.array("lm_head.weight").T * np.float32(plan.logits_scale)
    if plan.logits_cap:
        logits = plan.logits_cap * np.tanh(logits / plan.logits_cap)
    np.testing.assert_allclose(logits, of_transformers(model), rtol=0, atol=3e-4)


@needs_kernels
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_with_8_bit_weights_it_stays_close(family: str) -> None:
    model = tiny_dense(family)
    target = tiny_kernel_target(from_torch(model), packed=())
    got, expected = target.forward(target.new_cache(), TEXT).logits, of_transformers(model)
    cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() > 0.99


@needs_kernels
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_a_tree_in_a_long_text_has_the_bits_of_its_paths(family: str) -> None:
    target = tiny_kernel_target(from_torch(tiny_dense(family)))
    parents = [-1, -1, 0, 0, 1, 2, 2, 5, 7, 8, 9, 10]  # deeper than a window
    for length in (1, 3, 40):
        together = target.new_cache()
        target.forward(together, TEXT[:length])
        tree = target.forward(together, TEXT[: len(parents)], parents).logits
        for path in ([1, 4], [0, 3], [0, 2, 6], [0, 2, 5, 7, 8, 9, 10, 11]):
            alone = target.new_cache()
            for token in TEXT[:length]:
                target.forward(alone, [token])
            for node in path:
                single = target.forward(alone, [TEXT[node]]).logits[0]
                assert single.tobytes() == tree[node].tobytes()
