"""The memory encoder computes what the authors' code computes."""

from __future__ import annotations

import pytest
import torch
from moa_server.target import Target

from tests.parity.conftest import Reference

TOLERANCE = 1e-4


def assert_close(ours: torch.Tensor, theirs: object) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=TOLERANCE)


def test_layer_self_attention(reference: Reference) -> None:
    encoder = reference.checkpoint(0).encoder(torch.float32)
    out = encoder.over_layers(torch.tensor(reference.train["kv_stack"]))
    assert_close(out, reference.train["n0.lsa_out"])
    assert_close(out.mean(-2), reference.train["n0.lsa_mean"])


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_memory_rows(reference: Reference, reused_layers: int) -> None:
    encoder = reference.checkpoint(reused_layers).encoder(torch.float32)
    memory = encoder(torch.tensor(reference.train["kv_stack"]))
    assert_close(memory, reference.train[f"n{reused_layers}.memory"])


def test_prefill_gives_the_authors_memory_and_cross_attention_cache(reference: Reference) -> None:
    """From the target's own forward to what the cross-attention attends to: rows, as on the wire, then rotated."""
    prompt = reference.infer["prompt_ids"].tolist()
    target: Target = reference.target()
    cache = target.new_cache()
    target.prefill(cache, prompt)
    encoder = reference.checkpoint(0).encoder(torch.float32)
    memory = encoder(torch.from_numpy(cache.lsa_input(0, len(prompt))))
    assert_close(memory, reference.infer["prefill.memory"])
    keys, values = reference.decoder(0).memory_keys_values(encoder.project(memory), torch.arange(len(prompt)))
    assert_close(keys, reference.infer["prefill.ca_keys"])
    assert_close(values, reference.infer["prefill.ca_values"])
