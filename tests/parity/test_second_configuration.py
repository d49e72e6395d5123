"""Another configuration, in which KV width, hidden size, head dimension and tying differ, against a naive computation.

The reference here is written per token in float64 with explicit loops and no code of ours.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa_decoder import DraftState
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafting.drafts import draft_chain
from moa_shared.sampling.settings import Sampling
from transformers import PreTrainedModel

from tests.support.decoders import decoder_of, encoder_of
from tests.support.torch_models import torch_model

Array = np.ndarray[Any, np.dtype[np.float64]]
THETA, EPS = 5000.0, 1e-6
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]


def make_target() -> PreTrainedModel:
    """Hidden 48, but KV width 2 * 3 * 12 = 72; 6 heads of 12 (not 48 / 6); tied embeddings; 5 layers."""
    return torch_model(
        seed=5, vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=5, num_attention_heads=6,
        num_key_value_heads=3, head_dim=12, rms_norm_eps=EPS, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, bos_token_id=None, eos_token_id=None,
    ).requires_grad_(False)  # fmt: skip


def arrays_of(model: PreTrainedModel) -> dict[str, npt.NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def make_checkpoint(reused_layers: int) -> Checkpoint:
    config = DrafterConfig(
        vocab_size=101, hidden_size=48, target_layers=5, target_heads=6, target_kv_heads=3, target_head_dim=12,
        sa_kv_heads=2, sa_mlp=56, ca_kv_heads=1, ca_mlp=40, lsa_heads=9, lsa_kv_heads=3, lsa_mlp=44,
        rms_norm_eps=EPS, rope_parameters={"rope_type": "default", "rope_theta": THETA}, reused_layers=reused_layers,
    )  # fmt: skip
    tensors = fresh_tensors(config, seed=9)
    generator = np.random.default_rng(1)
    for name in tensors:
        if "norm" in name or name.endswith("bias"):
            tensors[name] += np.float32(0.3) * generator.standard_normal(tensors[name].shape, np.float32)
    return Checkpoint(config, tensors, "")


def norm(x: Array, weight: Array) -> Array:
    out: Array = weight * x / math.sqrt(float(np.mean(x * x)) + EPS)
    return out


def turn(x: Array, position: int) -> Array:
    """Rotary position of one head's vector."""
    half = len(x) // 2
    out = np.empty_like(x)
    for index in range(half):
        angle = position * THETA ** (-2 * index / len(x))
        a, b = x[index], x[index + half]
        out[index] = a * math.cos(angle) - b * math.sin(angle)
        out[index + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


class NaiveLayer:
    """One decoder layer, a token at a time."""

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any]], prefix: str, head_dim: int) -> None:
        self.w = {
            name.removeprefix(prefix): value.astype(np.float64)
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        self.head_dim = head_dim

    def project(self, x: Array, which: str) -> Array:
        out: Array = (self.w[f"self_attn.{which}_proj.weight"] @ x).reshape(-1, self.head_dim)
        return out

    def key_value(self, source: Array, position: int) -> tuple[Array, Array]:
        normed = norm(source, self.w["input_layernorm.weight"])
        return np.array([turn(head, position) for head in self.project(normed, "k")]), self.project(normed, "v")

    def run(self, x: Array, position: int, seen: list[tuple[Array, Array]]) -> Array:
        normed = norm(x, self.w["input_layernorm.weight"])
        heads = []
        queries = self.project(normed, "q")
        for number, query in enumerate(queries):
            rotated = turn(query, position)
            group = number * len(seen[0][0]) // len(queries)
            scores = np.array([rotated @ keys[group] for keys, _ in seen]) / math.sqrt(self.head_dim)
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            heads.append(sum(share * values[group] for share, (_, values) in zip(shares, seen, strict=True)))
        x = x + self.w["self_attn.o_proj.weight"] @ np.concatenate(heads)
        normed = norm(x, self.w["post_attention_layernorm.weight"])
        gate = self.w["mlp.gate_proj.weight"] @ normed
        inner = gate / (1 + np.exp(-gate)) * (self.w["mlp.up_proj.weight"] @ normed)
        out: Array = x + self.w["mlp.down_proj.weight"] @ inner
        return out


class Naive:
    """The whole of one drafting cycle: newest token at index p, memory of 0..p-1, then drafts."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint) -> None:
        tensors = dict(checkpoint.tensors)
        self.reused = checkpoint.config.reused_layers
        self.lsa = NaiveLayer(tensors, "layer_self_attention.", 72 // 9)
        self.sa = NaiveLayer(tensors, "self_attention.", 12)
        self.ca = NaiveLayer(tensors, "cross_attention.", 12)
        self.to_hidden = tensors["Ekv2E.weight"], tensors["Ekv2E.bias"]
        state = arrays_of(model)
        self.embed = state["model.embed_tokens.weight"]
        self.final = state["model.norm.weight"]
        self.tail = [NaiveLayer(state, f"model.layers.{index}.", 12) for index in range(5 - self.reused, 5)]

    def memory(self, kv: Array) -> Array:
        """[layers, KV width] of one token to its memory row."""
        seen = [self.lsa.key_value(row, layer) for layer, row in enumerate(kv)]
        out = np.mean([self.lsa.run(row, layer, seen) for layer, row in enumerate(kv)], axis=0)
        row: Array = self.to_hidden[0] @ out + self.to_hidden[1]
        return row

    def logits(self, tokens: list[int], memory: list[Array], states: list[Array]) -> list[Array]:
        """Of the newest token (at index len(memory)) and every draft after it."""
        known = len(memory)
        sa_seen: list[tuple[Array, Array]] = []
        ca_seen = [self.ca.key_value(row, position) for position, row in enumerate(memory)]
        tails: list[list[tuple[Array, Array]]] = [[] for _ in self.tail]
        out = []
        for position, token in enumerate(tokens):
            x = self.embed[token]
            sa_seen.append(self.sa.key_value(x, position))
            if position < known:
                x = states[position] if self.tail else x
            else:
                x = self.ca.run(self.sa.run(x, position, sa_seen), position, ca_seen)
            for layer, seen in zip(self.tail, tails, strict=True):
                seen.append(layer.key_value(x, position))
                x = layer.run(x, position, seen)
            if position >= known:
                out.append(self.embed @ (norm(x, self.final) if self.tail else x))
        return out


@pytest.mark.parametrize("reused_layers", [0, 1, 2])
def test_drafting_equals_the_naive_computation(reused_layers: int) -> None:
    model, checkpoint = make_target(), make_checkpoint(reused_layers)
    naive = Naive(model, checkpoint)
    hidden = model(torch.tensor([PROMPT]), output_hidden_states=True)
    target = TorchTarget(make_target())
    cache = target.new_cache()
    layer = 5 - reused_layers if reused_layers else None
    output = target.forward(cache, PROMPT, want_state_layer=layer)
    kv = torch.from_numpy(cache.lsa_input(0, len(PROMPT)))
    encoder = encoder_of(checkpoint, torch.float32)
    rows = [naive.memory(row) for row in kv.double().numpy()]
    np.testing.assert_allclose(encoder.memory(kv).numpy(), rows, rtol=0, atol=1e-4)

    decoder = decoder_of(checkpoint, ArrayWeights(arrays_of(model)), "float32")
    state = DraftState(decoder)
    newest = int(output.logits[-1].argmax())
    state.extend([*PROMPT, newest])
    np.testing.assert_allclose(checkpoint.rows("float32")(kv.numpy()), encoder.encode(kv), rtol=0, atol=1e-4)
    state.append_memory(0, encoder.encode(kv).numpy())
    if layer is not None:
        state.append_reused_state(0, output.states[layer])
    chain = draft_chain(state, 4, Sampling())
    logits = [state.begin()]
    for step, token in enumerate(chain.tokens):
        logits.append(state.expand([token], [step - 1]))
    states = list(hidden.hidden_states[5 - reused_layers][0].double().numpy())
    expected = naive.logits([*PROMPT, newest, *chain.tokens], rows, states)
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=0, atol=1e-4)
    assert list(chain.tokens) == [int(np.argmax(row)) for row in expected[:-1]]
