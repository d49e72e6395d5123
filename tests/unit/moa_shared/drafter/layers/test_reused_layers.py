"""Reused layers compute what transformers' own layers do, in every family, from the state that enters them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter import ArrayWeights, Checkpoint, DrafterConfig, fresh_tensors
from moa_shared.drafter.kinds.moa_decoder import DraftState
from moa_shared.drafter.layers.reused_layers import ReusedLayers
from moa_shared.drafter.layers.state import run_of_text
from moa_shared.errors import ModelSourceError

from tests.support.decoders import EVEN, ODD, Rows, close, decoder_of, make_decoder, normal, target_arrays
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.torch

LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
FAMILIES = {
    "llama": ("llama", PLAIN),
    "llama 3.1": ("llama", LLAMA_3_1),
    "qwen2": ("qwen2", PLAIN),
    "qwen3": ("qwen3", PLAIN),
}
LENGTH, PREDICTED = 40, 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reused_layers", [1, 3])
@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["numpy", "kernels"])
def test_true_states_give_the_targets_own_features(sizes: DrafterConfig, family: str, reused_layers: int) -> None:
    architecture, rope = FAMILIES[family]
    hidden = sizes.target_heads * sizes.target_head_dim  # as Qwen2 has it
    model: Any = torch_model(
        architecture, vocab_size=30, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=4,
        head_dim=sizes.target_head_dim, rope_parameters=dict(rope), rms_norm_eps=1e-5,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    ).requires_grad_(False)  # fmt: skip
    tokens = torch.randint(30, (1, LENGTH))
    output = model.model(tokens, output_hidden_states=True)
    states = output.hidden_states[4 - reused_layers][0].numpy()
    config = dataclasses.replace(sizes, hidden_size=hidden, reused_layers=reused_layers, rope_parameters=rope)
    target = ArrayWeights({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    decoder = decoder_of(Checkpoint(config, fresh_tensors(config, seed=0), ""), target, "float32")
    assert decoder.reused is not None
    layers = ReusedLayers(decoder.reused, kv=decoder.arithmetic.kv)
    known = LENGTH - PREDICTED
    layers.add(known // 2, states[known // 2 : known])
    layers.add(0, states[: known // 2])
    assert layers.catch_up(known) == known
    features = decoder.features(layers.run(states[known:], run_of_text(range(known, LENGTH))))
    np.testing.assert_allclose(features, output.last_hidden_state[0, known:], rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", ["numpy", "float32"])
def test_long_runs_in_batches_are_as_in_one(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    logits: list[Rows] = []
    decoder = make_decoder(2, kind)
    states = normal(LENGTH, decoder.config.hidden_size, seed=5)
    for batch in (LENGTH, 7):
        monkeypatch.setattr("moa_shared.drafter.layers.state._BATCH", batch)
        state = DraftState(decoder)
        state.extend([1] * (LENGTH + 1))
        state.append_reused_state(0, states)
        logits.append(state.begin())
    close(logits[0], logits[1])


def test_a_target_without_the_layers_that_are_reused_is_refused() -> None:
    arrays = target_arrays(EVEN)
    config = dataclasses.replace(EVEN, reused_layers=2)
    del arrays["model.layers.3.self_attn.q_proj.weight"]
    with pytest.raises(ModelSourceError, match="The weights hold no tensor model"):
        decoder_of(Checkpoint(config, fresh_tensors(config, seed=0), ""), ArrayWeights(arrays))
