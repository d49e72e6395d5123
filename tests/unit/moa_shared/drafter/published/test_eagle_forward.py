"""EAGLE-2 as published drafts what a plain statement of its forward in torch says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter import load_checkpoint
from moa_shared.drafter.kinds.baseline import BaselineState
from moa_shared.drafter.published.find import find_drafter
from moa_shared.models import WeightReader, resolve
from torch.nn import functional as F

from tests.support.published_drafters import (
    EAGLE_CONFIG,
    HEAD_DIM,
    HIDDEN,
    THETA,
    eagle_tensors,
    publish,
    save_llama3,
)

pytestmark = pytest.mark.torch

TOKENS = [5, 17, 42, 8, 17, 42, 90]
DRAFTS = [11, 3, 64]


def eagle_forward(w: dict[str, torch.Tensor], tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """EAGLE's layer over whole rows: token i + 1 beside the target's feature i, at position i.

    No norm before attention, none after the layer.

    Returns:
        [rows, hidden]: predicted features, that is what enters the target's head.
    """
    x = torch.cat((w["embed_tokens.weight"][tokens], features), dim=-1)
    x = F.linear(x, w["fc.weight"], w.get("fc.bias"))
    rows = len(x)

    def heads(part: str) -> torch.Tensor:
        name = f"layers.0.self_attn.{part}_proj"
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias")).view(rows, -1, HEAD_DIM).transpose(0, 1)

    frequencies = THETA ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.cat((torch.arange(rows)[:, None] * frequencies,) * 2, dim=-1)

    def rotated(y: torch.Tensor) -> torch.Tensor:
        first, second = y.chunk(2, dim=-1)
        return y * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()

    queries, keys, values = rotated(heads("q")), rotated(heads("k")), heads("v")
    groups = len(queries) // len(keys)
    scores = queries @ keys.repeat_interleave(groups, 0).transpose(1, 2) / HEAD_DIM**0.5
    scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
    attended = scores.softmax(-1) @ values.repeat_interleave(groups, 0)
    x = x + F.linear(attended.transpose(0, 1).reshape(rows, -1), w["layers.0.self_attn.o_proj.weight"])
    normed = x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * w["layers.0.post_attention_layernorm.weight"]
    gate = F.silu(F.linear(normed, w["layers.0.mlp.gate_proj.weight"]))
    inner = gate * F.linear(normed, w["layers.0.mlp.up_proj.weight"])
    return x + F.linear(inner, w["layers.0.mlp.down_proj.weight"])


@pytest.mark.parametrize("biases", [False, True], ids=["ten tensors", "with biases"])
def test_drafts_of_a_chain(tmp_path: Path, biases: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    files = resolve(str(save_llama3(tmp_path / "tiny-llama3")))
    more = {f"layers.0.self_attn.{part}_proj.bias": torch.rand(128 if part == "q" else 64) for part in "qkv"}
    tensors = eagle_tensors(**(more | {"fc.bias": torch.rand(HIDDEN)} if biases else {}))
    path = find_drafter(str(publish(tmp_path / "eagle", tensors, EAGLE_CONFIG, pickled=True)), files)
    target: Any = WeightReader(files)
    state = load_checkpoint(path).states(target, "float32")()
    assert isinstance(state, BaselineState)

    weights = {name: tensor.float() for name, tensor in tensors.items()}
    weights["embed_tokens.weight"] = torch.from_numpy(target.array("model.embed_tokens.weight"))
    head = torch.from_numpy(target.array("lm_head.weight"))
    features = torch.randn(len(TOKENS) - 1, HIDDEN, generator=torch.Generator().manual_seed(9))
    state.append_memory(0, features.numpy())
    state.extend(TOKENS)
    tokens, logits = list(TOKENS), [state.begin()[0]]
    logits += [state.expand([token], [parent])[0] for parent, token in enumerate(DRAFTS, start=-1)]
    for ours in logits:
        out = eagle_forward(weights, torch.tensor(tokens[1:]), features)
        np.testing.assert_allclose(ours, (out[-1] @ head.T).numpy(), rtol=0, atol=2e-5)
        features = torch.cat((features, out[-1:]))  # a draft's row takes the prediction that led to it
        tokens.append(DRAFTS[len(tokens) - len(TOKENS)] if len(tokens) < len(TOKENS) + len(DRAFTS) else 0)
