from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from moa_client.device.drafter_catalog import level_ms
from moa_shared.drafter import ArrayWeights, Checkpoint, DrafterConfig, fresh_tensors
from moa_shared.drafter.kinds.dflash import BlockState
from moa_shared.drafter.kinds.moa_decoder import DraftState
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD

VOCAB = 64
FINGERPRINT = "ab" * 32
CONFIG = DrafterConfig(
    vocab_size=VOCAB, hidden_size=32, target_layers=3, target_heads=4, target_kv_heads=2, target_head_dim=8,
    sa_kv_heads=2, sa_mlp=32, ca_kv_heads=2, ca_mlp=32, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=32,
)  # fmt: skip


class Maker:
    """Makes states of a tiny drafter, and counts them."""

    def __init__(self, config: DrafterConfig = CONFIG) -> None:
        self._config = config
        tensors = fresh_tensors(config, seed=0)
        checkpoint = Checkpoint(config, tensors, FINGERPRINT)
        table = np.ones((VOCAB, 32), np.float32)
        self._states = checkpoint.states(ArrayWeights({EMBEDDINGS: table, HEAD: table}), "float32")
        self.made = 0

    def __call__(self) -> tuple[DrafterConfig, DraftState | BlockState | None]:
        self.made += 1
        state = self._states()
        return self._config, state if isinstance(state, DraftState | BlockState) else None


def test_a_block_is_measured_by_its_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker(replace(CONFIG, kind="dflash", state_entries=(1,), block_size=6))
    now = iter(float(tick) for tick in range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    assert level_ms(tmp_path, FINGERPRINT, 3, maker) == 1000 / 5
