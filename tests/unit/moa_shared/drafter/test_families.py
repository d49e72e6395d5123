"""Drafters over every family: layers that a device runs are the target's own."""

from typing import Any

import numpy as np
import pytest
import torch
from moa_kernels.library import library
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa_decoder import ReusedLayers
from moa_shared.drafter.kinds.state import run_of_text
from moa_shared.drafter.kinds.weights import ArrayWeights, TargetParts
from moa_shared.errors import ModelSourceError
from moa_shared.models.network.network import Network
from moa_shared.models.network.plan import kv_width
from transformers import PreTrainedModel

from tests.support.decoders import decoder_of
from tests.support.families import (
    DENSE_FAMILIES,
    HYBRID_MIXTURES,
    HYBRIDS,
    MIXTURES,
    tiny_dense,
    tiny_mixture,
    weights_of,
)
from tests.support.tiny_models import SIZES

LENGTH, PREDICTED = 40, 3
SHARING = "gemma 4 with embeddings by layer"  # whose last layers read keys and values of earlier ones
TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(LENGTH)]
pytestmark = [pytest.mark.torch, pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")]


def tiny(family: str, **changes: Any) -> PreTrainedModel:
    """A model with experts or without."""
    return tiny_dense(family, **changes) if family in DENSE_FAMILIES else tiny_mixture(family, **changes)


@pytest.mark.parametrize("family", [SHARING, "qwen 3.5"])
def test_layers_that_need_more_than_rows_are_not_reused(family: str) -> None:
    model = tiny(family)
    with pytest.raises(ModelSourceError, match="No drafts can be computed with these weights"):
        decoder_of(drafter(model, reused_layers=2), TargetWeights(model), "float32")


class TargetWeights(ArrayWeights):
    """A model's weights, with its config.json, as `WeightReader` has them."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(weights_of(model).tensors)
        self.config = model.config.to_dict()


def drafter(model: PreTrainedModel, **changes: Any) -> Checkpoint:
    config = model.config
    values = config.to_dict()  # which has sizes that layers differ in
    heads, kv_heads = config.num_attention_heads, values["num_key_value_heads"]
    head_dim = values.get("head_dim") or config.hidden_size // heads
    sizes: dict[str, Any] = {
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "target_layers": config.num_hidden_layers,
        "target_heads": heads, "target_kv_heads": kv_heads, "target_head_dim": head_dim, "sa_kv_heads": kv_heads,
        "sa_mlp": 64, "ca_kv_heads": kv_heads, "ca_mlp": 64, "lsa_heads": 2, "lsa_kv_heads": 1, "lsa_mlp": 64,
        "rms_norm_eps": config.rms_norm_eps, "target_kv_width": kv_width(config.to_dict()),
    }  # fmt: skip
    own = DrafterConfig(**sizes | changes)
    return Checkpoint(own, fresh_tensors(own, seed=0), "")


@pytest.mark.parametrize("family", [*(each for each in DENSE_FAMILIES if each != SHARING), *MIXTURES])
def test_reused_layers_compute_what_the_target_does(family: str) -> None:
    model: Any = tiny(family, max_position_embeddings=64)
    output = model(torch.tensor([TEXT]), output_hidden_states=True)
    reused = 1 if family in (*HYBRIDS, *HYBRID_MIXTURES) else 2  # the layer before has a recurrent state
    states = output.hidden_states[model.config.num_hidden_layers - reused][0].numpy()  # which enter the first of them
    decoder = decoder_of(drafter(model, reused_layers=reused), TargetWeights(model), "float32")
    assert decoder.reused is not None
    layers = ReusedLayers(decoder.reused, kv=decoder.arithmetic.kv)
    known = LENGTH - PREDICTED
    layers.add(0, states[:known])
    assert layers.catch_up(known) == known
    features = decoder.features(layers.run(states[known:], run_of_text(range(known, LENGTH))))
    np.testing.assert_allclose(decoder.logits(features), output.logits[0, known:], rtol=0, atol=3e-4)


@pytest.mark.parametrize("context", [0, 32])
def test_reused_layers_have_the_angles_of_the_context_that_is_served(context: int) -> None:
    model = tiny_dense("phi 4")
    network = Network(weights_of(model), model.config.to_dict(), plain=True, context=context)
    target = KernelTarget(network, SIZES["max_position_embeddings"], kv="f32")
    first = model.config.num_hidden_layers - 2
    output = target.forward(target.new_cache(), TEXT[:32], want_state_layer=first)
    weights = TargetWeights(model)
    parts = TargetParts(weights, context=context)
    decoder = decoder_of(drafter(model, reused_layers=2), weights, "float32", parts=parts)
    assert decoder.reused is not None
    layers = ReusedLayers(decoder.reused, kv=decoder.arithmetic.kv)
    features = decoder.features(layers.run(output.states[first], run_of_text(range(32))))
    np.testing.assert_allclose(decoder.logits(features), output.logits, rtol=0, atol=3e-4)
