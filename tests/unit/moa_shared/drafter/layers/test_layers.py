"""The pieces of a decoder layer, against transformers' own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter import ArrayWeights, Checkpoint, fresh_tensors
from moa_shared.drafter.kinds.torch_layers import DecoderLayer, TorchRotary, attend, rotate
from moa_shared.models.weights.loading import PackedLinear
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.support.decoders import EVEN, Rows, decoder_of, encoder_of, normal, target_arrays
from tests.unit.moa_shared.drafter.layers.test_reused_layers import LLAMA_3_1, PLAIN

pytestmark = pytest.mark.torch

YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}


def stock(rope: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=24, intermediate_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
        max_position_embeddings=64, rms_norm_eps=1e-5, rope_parameters=dict(rope), attn_implementation="eager",
    )  # fmt: skip


@pytest.mark.parametrize("rope", [PLAIN, LLAMA_3_1, YARN], ids=["plain", "llama3", "yarn"])
def test_rotary_positions_are_scaled_as_the_targets(rope: dict[str, Any]) -> None:
    positions = torch.tensor([0, 1, 17, 1500])  # beyond the first table too
    theirs = LlamaRotaryEmbedding(stock(rope))(torch.zeros(1), positions[None])
    for ours, expected in zip(TorchRotary(8, rope)(positions, torch.float32), theirs, strict=True):
        torch.testing.assert_close(ours, expected[0])


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


def test_an_encoder_for_another_device_keeps_nothing_on_the_cpu() -> None:
    """Packed weights cannot be moved: a GPU's server could make no memory rows."""
    encoder = encoder_of(Checkpoint(EVEN, fresh_tensors(EVEN, seed=0), ""), torch.bfloat16, torch.device("meta"))
    assert {parameter.device.type for parameter in encoder.parameters()} == {"meta"}
    assert not [part for part in encoder.modules() if isinstance(part, PackedLinear)]


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
