"""Each family as transformers computes it in float32: behind the kernels, in numpy, and closely with 8-bit weights."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from moa_kernels import Linear, Segment, Stack, norm
from moa_kernels.library import library
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.network import LayerEmbeddings, Network, read_layer
from moa_shared.models.network.plan import plan_of
from moa_shared.models.network.served import check_family

from tests.support.families import DENSE_FAMILIES, MIXTURES, tiny_dense, tiny_mixture, weights_of
from tests.support.messages import says
from tests.support.tiny_models import SIZES, Floats, tiny_kernel_target
from tests.support.torch_models import from_torch

pytestmark = pytest.mark.torch

TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(50)]
PACKED = ("q_proj", "k_proj", "v_proj", "up_proj")
MIXTURE = "mixture: "
EVERY = [*DENSE_FAMILIES, *(f"{MIXTURE}{family}" for family in MIXTURES)]
needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")


def tiny(family: str) -> Any:
    return tiny_mixture(family.removeprefix(MIXTURE)) if family.startswith(MIXTURE) else tiny_dense(family)


def of_transformers(model: Any) -> Floats:
    with torch.no_grad():
        logits: Floats = model(torch.tensor([TEXT])).logits[0].numpy()
    return logits


def target_of(family: str, *, plain: bool = False, packed: tuple[str, ...] = ()) -> KernelTarget:
    model = tiny(family)
    if not family.startswith(MIXTURE):
        return tiny_kernel_target(from_torch(model), plain=plain, packed=packed)
    network = Network(weights_of(model, packed), model.config.to_dict(), plain=plain)
    return KernelTarget(network, SIZES["max_position_embeddings"], kv="f32" if plain else "f16")


def test_every_family_is_tested() -> None:
    tested = {tiny(family).config.model_type for family in EVERY}
    assert tested | {"llama", "qwen2", "qwen3"} == FAMILIES.keys()


@needs_kernels
@pytest.mark.parametrize("family", EVERY)
def test_the_kernels_in_float32_compute_what_transformers_does(family: str) -> None:
    model = tiny(family)
    check_family(model.config.to_dict(), family)
    target = target_of(family, plain=True)
    got = target.forward(target.new_cache(), TEXT).logits
    np.testing.assert_allclose(got, of_transformers(model), rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", EVERY)
def test_numpy_computes_what_transformers_does(family: str) -> None:
    model, weights = tiny(family), weights_of(tiny(family))
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
@pytest.mark.parametrize("family", EVERY)
def test_with_8_bit_weights_it_stays_close(family: str) -> None:
    """As a whole: a row whose router was nearly undecided may have other experts, and is another then."""
    target = target_of(family)
    got, expected = target.forward(target.new_cache(), TEXT).logits, of_transformers(tiny(family))
    cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert (np.median(cosines) if family.startswith(MIXTURE) else cosines.min()) > 0.99


@needs_kernels
@pytest.mark.parametrize("family", EVERY)
def test_a_tree_in_a_long_text_has_the_bits_of_its_paths(family: str) -> None:
    target = target_of(family, packed=PACKED)
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


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen 3", {"num_experts": 0}, "The config.json of tiny has num_experts = 0, expected a whole number from 1"),
        ("qwen 3", {"decoder_sparse_step": 0}, "The config.json of tiny has decoder_sparse_step = 0, expected a"),
        ("qwen 3", {"mlp_only_layers": 3}, "The config.json of tiny has values that make no sense (argument of type"),
        ("qwen 3", {"use_sliding_window": True, "sliding_window": 0}, "The config.json of tiny has sliding_window ="),
    ],
)
def test_configurations_that_make_no_sense_are_refused(family: str, changes: dict[str, Any], message: str) -> None:
    config = tiny_mixture(family).config.to_dict() | changes
    with says(ModelSourceError, message):
        check_family(config, "tiny")
