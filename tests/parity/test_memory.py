"""The memory encoder computes what the authors' code computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from moa_server.verifier import Target
from moa_shared.drafter import ArrayWeights
from moa_shared.drafter.kinds.moa import KernelEncoder

from tests.parity.conftest import Reference
from tests.support.decoders import encoder_of

TOLERANCE = 1e-4


def assert_close(ours: torch.Tensor, theirs: object) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=TOLERANCE)


def test_layer_self_attention(reference: Reference) -> None:
    encoder = encoder_of(reference.checkpoint(0), torch.float32)
    out = encoder.over_layers(torch.tensor(reference.train["kv_stack"]))
    assert_close(out, reference.train["n0.lsa_out"])
    assert_close(out.mean(-2), reference.train["n0.lsa_mean"])


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_memory_rows(reference: Reference, reused_layers: int) -> None:
    encoder = encoder_of(reference.checkpoint(reused_layers), torch.float32)
    memory = encoder(torch.tensor(reference.train["kv_stack"]))
    assert_close(memory, reference.train[f"n{reused_layers}.memory"])


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_memory_rows_without_torch(reference: Reference, reused_layers: int) -> None:
    checkpoint = reference.checkpoint(reused_layers)
    encoder = KernelEncoder(checkpoint.config, ArrayWeights(checkpoint.tensors), "float32")
    kv = reference.train["kv_stack"]
    memory = encoder.memory(kv.reshape(-1, *kv.shape[-2:]))
    theirs = reference.train[f"n{reused_layers}.memory"]
    np.testing.assert_allclose(memory.reshape(theirs.shape), theirs, rtol=0, atol=TOLERANCE)


def test_prefill_gives_the_authors_memory_and_cross_attention_cache(reference: Reference) -> None:
    """From the target's own forward to what the cross-attention attends to: rows, as on the wire, then rotated."""
    prompt = reference.infer["prompt_ids"].tolist()
    target: Target = reference.target()
    cache = target.new_cache()
    target.prefill(cache, prompt)
    encoder = encoder_of(reference.checkpoint(0), torch.float32)
    memory = encoder(torch.from_numpy(cache.lsa_input(0, len(prompt))))
    assert_close(memory, reference.infer["prefill.memory"])
    decoder = reference.decoder(0)
    assert decoder.cross_attention is not None
    held = decoder.new_cache(decoder.cross_attention)
    decoder.remember(held, encoder.project(memory).numpy(), np.arange(len(prompt), dtype=np.int32))
    rows = held.read(0, len(prompt)).reshape(len(prompt), held.heads[0].number, 2, -1)
    assert_close(torch.from_numpy(rows[:, :, 0].swapaxes(0, 1)), reference.infer["prefill.ca_keys"])
    assert_close(torch.from_numpy(rows[:, :, 1].swapaxes(0, 1)), reference.infer["prefill.ca_values"])
