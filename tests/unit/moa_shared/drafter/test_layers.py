"""Layers of a drafter compute what transformers' own do; reused ones in every family."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder, DraftState
from moa_shared.drafter.kinds.torch_layers import DecoderLayer, TorchRotary, attend, rotate
from moa_shared.drafter.layers.state import run_of_text
from moa_shared.drafter.layers.weights import ArrayWeights
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.support.decoders import EVEN, ODD, Rows, close, decoder_of, encoder_of, make_decoder, normal, target_arrays
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
LENGTH, PREDICTED = 40, 3


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


def stock(rope: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=24, intermediate_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
        max_position_embeddings=64, rms_norm_eps=1e-5, rope_parameters=dict(rope), attn_implementation="eager",
    )  # fmt: skip


@pytest.mark.parametrize("rope", [PLAIN, LLAMA_3_1], ids=["plain", "llama3"])
def test_a_layer_is_the_stock_one(rope: dict[str, Any]) -> None:
    torch.manual_seed(1)
    theirs = LlamaDecoderLayer(stock(rope), 0).eval().requires_grad_(False)
    ours = DecoderLayer(24, 6, 3, 8, 40, 1e-5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 20, 24)
    positions = torch.arange(20)
    mask = torch.ones(20, 20, dtype=torch.bool).tril()
    embedded = LlamaRotaryEmbedding(stock(rope))(x, positions[None])
    additive = torch.zeros(1, 1, 20, 20).masked_fill(~mask, -torch.inf)
    expected = theirs(x, attention_mask=additive, position_embeddings=embedded)
    cos, sin = TorchRotary(8, rope)(positions, torch.float32)
    attention, normed = ours.self_attn, ours.input_layernorm(x)
    queries, keys = rotate(attention.queries(normed), cos, sin), rotate(attention.keys(normed), cos, sin)
    out = ours.finish(x, attend(queries, keys, attention.values(normed), mask))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        ours.finish_mean(x, attend(queries, keys, attention.values(normed), mask)), expected.mean(1), rtol=0, atol=1e-5
    )


def test_the_authors_lost_scaling_concerns_memory_alone_and_can_be_had() -> None:
    scaled = dataclasses.replace(EVEN, rope_parameters=LLAMA_3_1)
    unscaled = dataclasses.replace(scaled, unscaled_memory_rope=True)
    plain = dataclasses.replace(EVEN, rope_parameters=PLAIN)
    rows, kv = normal(30, EVEN.memory_width, seed=1), normal(5, 4, EVEN.kv_width, seed=2)
    keys: list[Rows] = []
    own: list[Rows] = []
    memory: list[Rows] = []
    for config in (scaled, unscaled, plain):
        checkpoint = Checkpoint(config, fresh_tensors(config, seed=0), "")
        decoder = decoder_of(checkpoint, ArrayWeights(target_arrays(config)), "float32")
        assert decoder.cross_attention is not None
        cache = decoder.new_cache(decoder.cross_attention)
        decoder.remember(cache, rows, np.arange(30, dtype=np.int32))
        keys.append(cache.read(0, 30).reshape(30, -1, 2, cache.heads[0].dim)[:, :, 0])
        own.append(decoder.self_attention.rotary.tables(30)[0])
        memory.append(checkpoint.rows("float32")(kv))
        theirs = encoder_of(checkpoint, torch.float32).encode(torch.from_numpy(kv)).numpy()
        np.testing.assert_allclose(memory[-1], theirs, rtol=0, atol=1e-4)
    assert np.array_equal(keys[1], keys[2])
    assert not np.allclose(keys[0], keys[2], atol=1e-3)
    assert np.array_equal(memory[1], memory[2])
    assert not np.array_equal(memory[0], memory[2])
    assert np.array_equal(own[0], own[1])
    assert not np.allclose(own[0], own[2], atol=1e-3)


KNOWN = LENGTH - PREDICTED
SIZES = pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["numpy", "kernels"])


def reusing(sizes: DrafterConfig) -> tuple[DraftDecoder, Any]:
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
    return decoder_of(made, target, "float32"), model


@SIZES
def test_true_states_give_the_targets_own_features(sizes: DrafterConfig) -> None:
    decoder, model = reusing(sizes)
    output = model.model(torch.randint(30, (1, LENGTH)), output_hidden_states=True)
    states = [state[0].numpy() for state in output.hidden_states]
    layers = decoder.new_reused()
    assert layers is not None
    layers.add(20, states[3][20:KNOWN])
    layers.add(0, states[3][:20])
    assert layers.catch_up(KNOWN) == KNOWN
    features = decoder.features(layers.run(states[3][KNOWN:], run_of_text(range(KNOWN, LENGTH))))
    np.testing.assert_allclose(features, output.last_hidden_state[0, KNOWN:], rtol=0, atol=2e-4)


@SIZES
def test_what_is_cut_back_may_come_again_and_be_another(sizes: DrafterConfig) -> None:
    """A text that was cut back and written again is as if it had come at once."""
    decoder, _ = reusing(sizes)
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
