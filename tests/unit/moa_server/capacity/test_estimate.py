"""Speeds that are estimated from sizes."""

from __future__ import annotations

import pytest
from moa_kernels import PAGE_ROWS
from moa_server.capacity import speed
from moa_server.capacity.speed import estimate_step, memory_bytes_per_s
from moa_server.verifier.memory_check import SizedTarget

CONFIG = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}


def test_a_step_reads_weights_and_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "memory_bytes_per_s", lambda _: 1e9)
    found = estimate_step(SizedTarget(CONFIG, "int8"), "int8", 10**8, 1)
    assert found is not None
    assert found.nbytes == 10**8 + 1024 * (2 * 3 * 2 * 16 * 2)  # keys and values, layers, heads, numbers, bytes
    assert found.step_ms == pytest.approx(found.nbytes / 1e6)
    assert found.tokens_per_s == pytest.approx(1e3 / found.step_ms)
    short = estimate_step(SizedTarget(CONFIG, "int8", PAGE_ROWS), "int8", 10**8, 1)
    assert short is not None
    assert short.nbytes == 10**8 + PAGE_ROWS * (2 * 3 * 2 * 16 * 2)
    assert estimate_step(SizedTarget(CONFIG, "bf16"), "bf16", 10**8, 1) is None


def test_memory_is_read_at_a_speed_that_machines_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "READ_BYTES", 1 << 24)
    assert 1e8 < memory_bytes_per_s(1) < 1e13
    assert 1e8 < memory_bytes_per_s(3) < 1e13
