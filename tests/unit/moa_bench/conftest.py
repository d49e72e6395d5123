"""What several tests of the bench need: a tiny target on the kernels, a result's facts, a connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from moa_server.target.kernel_target import KernelTarget
from moa_shared.drafter import ArrayWeights
from moa_shared.models.network.network import Network

VOCAB, HIDDEN, INNER, LAYERS, HEAD_DIM = 97, 64, 96, 2, 32
CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}


def random_weights() -> ArrayWeights:
    """Large enough that every token's logits depend on every other."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        shapes |= {
            f"{name}input_layernorm.weight": (HIDDEN,),
            f"{name}post_attention_layernorm.weight": (HIDDEN,),
            f"{name}self_attn.q_proj.weight": (2 * HEAD_DIM, HIDDEN),
            f"{name}self_attn.k_proj.weight": (HEAD_DIM, HIDDEN),
            f"{name}self_attn.v_proj.weight": (HEAD_DIM, HIDDEN),
            f"{name}self_attn.o_proj.weight": (HIDDEN, 2 * HEAD_DIM),
            f"{name}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{name}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{name}mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return ArrayWeights(
        {
            name: random.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5 if len(shape) > 1 else 1.0)
            for name, shape in shapes.items()
        }
    )


@pytest.fixture
def make_target() -> Callable[[], KernelTarget]:
    """Makes a tiny target on the variant in use: two layers, 97 tokens, random weights."""
    return lambda: KernelTarget(Network(random_weights(), CONFIG), 512)


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
