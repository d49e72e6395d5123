"""What several tests of the bench need: a tiny target on the kernels, a result's facts, a connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from moa_server.verifier.kernel_target import KernelTarget

from tests.support.tiny_models import tiny_kernel_target, tiny_model


@pytest.fixture
def make_target() -> Callable[[], KernelTarget]:
    """Makes a tiny target on the variant in use: two layers, 97 tokens, random weights."""
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return lambda: tiny_kernel_target(tiny_model(**sizes, max_position_embeddings=512), packed=())


@pytest.fixture
def facts() -> dict[str, Any]:
    """What every result says about its machine and target."""
    return {
        "machine": {
            "time": "2026-01-02T03:04:05+00:00", "cpu": "A CPU", "cores": 2, "packages": {"numpy": "2"},
            "commit": "abc",
        },
        "pinned": True,
        "target": "A target",
    }  # fmt: skip


def dial(address: str) -> socket.socket:
    """A connection to "host:port"."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)
