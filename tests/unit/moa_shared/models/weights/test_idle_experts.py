from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from moa_shared.models import ModelFiles
from moa_shared.models.tensors import write_tensors
from moa_shared.models.weights.weights import idle_experts_nbytes


@pytest.mark.parametrize(
    ("config", "idle"),
    [
        ({}, 0),
        ({"num_experts": 4, "num_experts_per_tok": 1}, 3 * 2 * 64 * 4),
        ({"num_local_experts": 4, "num_experts_per_tok": 3}, 2 * 64 * 4),
        ({"num_experts": 4, "num_experts_per_tok": 4}, 0),
    ],
)
def test_experts_that_a_token_does_not_go_to(config: dict[str, int], idle: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    names = [f"model.layers.0.mlp.experts.{number}.{part}.weight" for number in range(4) for part in ("up", "down")]
    write_tensors(path, dict.fromkeys([*names, "model.layers.0.self_attn.q_proj.weight"], np.zeros((8, 8), np.float32)))
    assert idle_experts_nbytes(ModelFiles("any", tmp_path, config, (path,), "", "")) == idle
