"""States of an earlier layer cross a bridge of the target's own layers, in whatever order they come."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from moa_kernels import Segment
from moa_shared.drafter import ArrayWeights, Checkpoint, DrafterConfig, fresh_tensors
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder
from moa_shared.drafter.layers.state import run_of_text
from moa_shared.drafter.layers.weights import TargetParts

from tests.support.decoders import EVEN, ODD, Rows, decoder_of, normal, target_arrays
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.torch

LENGTH, PREDICTED = 40, 3
KNOWN = LENGTH - PREDICTED
SIZES = pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["numpy", "kernels"])


def bridged(sizes: DrafterConfig, states_from: int) -> tuple[DraftDecoder, Any]:
    """A decoder that reuses one layer, and its target."""
    hidden = sizes.target_heads * sizes.target_head_dim
    model: Any = torch_model(
        vocab_size=30, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=4,
        head_dim=sizes.target_head_dim, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    ).requires_grad_(False)  # fmt: skip
    config = dataclasses.replace(
        sizes, hidden_size=hidden, reused_layers=1, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    target = ArrayWeights({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    made = Checkpoint(config, fresh_tensors(config, seed=0), "")
    return decoder_of(made, target, "float32", states_from=states_from), model


@SIZES
@pytest.mark.parametrize("states_from", [0, 1, 3])
def test_true_states_of_any_layer_give_the_targets_own_features(sizes: DrafterConfig, states_from: int) -> None:
    decoder, model = bridged(sizes, states_from)
    output = model.model(torch.randint(30, (1, LENGTH)), output_hidden_states=True)
    states = [state[0].numpy() for state in output.hidden_states]
    layers = decoder.new_reused()
    assert layers is not None
    assert (decoder.bridge is None) == (states_from == 3)
    layers.add(20, states[states_from][20:KNOWN])
    layers.add(0, states[states_from][:20])
    assert layers.catch_up(KNOWN) == KNOWN
    features = decoder.features(layers.run(states[3][KNOWN:], run_of_text(range(KNOWN, LENGTH))))
    np.testing.assert_allclose(features, output.last_hidden_state[0, KNOWN:], rtol=0, atol=2e-4)


@SIZES
def test_nothing_crosses_before_what_comes_before_it(sizes: DrafterConfig) -> None:
    decoder, _ = bridged(sizes, 1)
    states, layers = normal(LENGTH, decoder.config.hidden_size, seed=1), decoder.new_reused()
    assert layers is not None
    layers.add(5, states[5:10])
    assert layers.catch_up(10) == 10  # all of them are predicted
    layers.run(states[:1], run_of_text(range(10, 11)))
    layers.add(0, states[:5])
    layers.freshen(10)
    assert layers.catch_up(12) == 10


@SIZES
def test_what_is_cut_back_may_come_again_and_be_another(sizes: DrafterConfig) -> None:
    """A text that was cut back and written again is as if it had come at once."""
    decoder, _ = bridged(sizes, 1)
    before, after = (normal(LENGTH, decoder.config.hidden_size, seed=seed) for seed in (1, 2))
    outputs: list[Rows] = []
    for cut in (False, True):
        layers = decoder.new_reused()
        assert layers is not None
        if cut:
            layers.add(0, before[:30])
            layers.catch_up(30)
            layers.add(30, before[30:])
            layers.crop(20)
            layers.add(0, after[:25])  # held ones are passed over
            layers.add(25, after[25:])
        else:
            layers.add(0, np.concatenate((before[:20], after[20:])))
        assert layers.catch_up(LENGTH) == LENGTH
        outputs.append(layers.run(before[:1], run_of_text(range(LENGTH, LENGTH + 1))))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=2e-5)


def test_parts_that_two_drafters_run_are_packed_once() -> None:
    config = dataclasses.replace(EVEN, reused_layers=1)
    deeper = dataclasses.replace(EVEN, reused_layers=3)
    target = ArrayWeights(target_arrays(EVEN))
    parts = TargetParts(target)
    online, alone = (
        decoder_of(Checkpoint(each, fresh_tensors(each, seed=0), ""), target, "int8", parts=parts, states_from=1)
        for each in (config, deeper)
    )
    assert online.reused is not None
    assert alone.reused is not None
    assert online.bridge is not None
    assert alone.bridge is None
    both = [*online.bridge.layers, *online.reused.layers]
    assert all(mine is theirs for mine, theirs in zip(both, alone.reused.layers, strict=True))
    assert online._head is alone._head
    cache = online.bridge.new_cache(kv="f32")
    rows = normal(3, EVEN.hidden_size, seed=3)
    assert online.bridge.run(rows, [Segment.chain(cache, 3)])[0].shape == (3, EVEN.hidden_size)
