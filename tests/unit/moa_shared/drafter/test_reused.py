"""Reused layers compute what transformers' own layers do, in every family, from the state that enters them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from moa_shared.drafter import Checkpoint, DraftState, fresh_tensors
from moa_shared.drafter.inference_layer import Visibility
from moa_shared.drafter.reused import ReusedLayers
from moa_shared.errors import InternalError
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.unit.moa_shared.drafter.test_checkpoint import CONFIG
from tests.unit.moa_shared.drafter.test_state import Rows, close, make_decoder, normal

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
    "llama": (LlamaConfig, LlamaForCausalLM, PLAIN),
    "llama 3.1": (LlamaConfig, LlamaForCausalLM, LLAMA_3_1),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, PLAIN),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, PLAIN),
}
LENGTH, PREDICTED = 40, 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reused_layers", [1, 3])
def test_true_states_give_the_targets_own_features(family: str, reused_layers: int) -> None:
    make_config, make_model, rope = FAMILIES[family]
    torch.manual_seed(3)
    model: Any = make_model(
        make_config(
            vocab_size=30, hidden_size=16, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=4, max_position_embeddings=64, rope_parameters=dict(rope),
            rms_norm_eps=1e-5, initializer_range=0.3, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    ).eval().requires_grad_(False)  # fmt: skip
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            weight.add_(0.3 * torch.randn_like(weight))
    head_dim = model.model.layers[0].self_attn.head_dim
    assert head_dim == CONFIG.target_head_dim
    tokens = torch.randint(30, (1, LENGTH))
    output = model.model(tokens, output_hidden_states=True)
    states = output.hidden_states[4 - reused_layers][0]
    config = dataclasses.replace(CONFIG, reused_layers=reused_layers, rope_parameters=rope)
    decoder = Checkpoint(config, fresh_tensors(config, seed=0), "").decoder(
        torch.float32,
        model.model.embed_tokens.weight,
        model.lm_head.weight,
        list(model.model.layers[4 - reused_layers :]),
        model.model.norm,
    )
    layers = ReusedLayers(decoder)
    known = LENGTH - PREDICTED
    layers.add(known // 2, states[known // 2 : known])
    layers.add(0, states[: known // 2])
    assert layers.catch_up(known) == known
    visible = Visibility.of_run(PREDICTED, torch.float32)
    features = decoder.features(layers.run(states[known:], decoder.angles(range(known, LENGTH)), visible))
    torch.testing.assert_close(features, output.last_hidden_state[0, known:], rtol=0, atol=1e-4)


def test_long_runs_in_batches_are_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits: list[Rows] = []
    states = normal(LENGTH, 16, seed=5)
    for batch in (LENGTH, 7):
        monkeypatch.setattr("moa_shared.drafter.reused._BATCH", batch)
        state = DraftState(make_decoder(2))
        state.extend([1] * (LENGTH + 1))
        state.append_reused_state(0, states)
        logits.append(state.begin())
    close(logits[0], logits[1])


def test_a_decoder_without_the_layers_it_reuses_is_refused() -> None:
    config = dataclasses.replace(CONFIG, reused_layers=2)
    decoder = Checkpoint(config, fresh_tensors(config, seed=0), "").decoder(
        torch.float32, torch.randn(30, 16), torch.randn(30, 16)
    )
    with pytest.raises(InternalError, match="reuses 2 target layers, which were not loaded"):
        ReusedLayers(decoder)
