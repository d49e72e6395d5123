from __future__ import annotations

from pathlib import Path

import pytest
from moa_client.device.drafter_speed import level_ms
from moa_shared.drafter import ArrayWeights, Checkpoint, DrafterConfig, DraftState, fresh_tensors
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD

VOCAB = 64
FINGERPRINT = "ab" * 32
CONFIG = DrafterConfig(
    vocab_size=VOCAB, hidden_size=32, target_layers=3, target_heads=4, target_kv_heads=2, target_head_dim=8,
    sa_kv_heads=2, sa_mlp=32, ca_kv_heads=2, ca_mlp=32, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=32,
)  # fmt: skip


class Maker:
    """Makes states of a tiny drafter, and counts them."""

    def __init__(self) -> None:
        tensors = fresh_tensors(CONFIG, seed=0)
        checkpoint = Checkpoint(CONFIG, tensors, FINGERPRINT)
        table = tensors["cross_attention.mlp.gate_proj.weight"][:1].repeat(VOCAB, 0)
        self._states = checkpoint.states(ArrayWeights({EMBEDDINGS: table, HEAD: table}), "float32")
        self.made = 0

    def __call__(self) -> tuple[DrafterConfig, DraftState | None]:
        self.made += 1
        state = self._states()
        return CONFIG, state if isinstance(state, DraftState) else None


def test_a_time_is_measured_once(tmp_path: Path) -> None:
    maker = Maker()
    first = level_ms(tmp_path, FINGERPRINT, 3, maker)
    assert first > 0
    assert level_ms(tmp_path, FINGERPRINT, 3, maker) == first
    assert maker.made == 1
    level_ms(tmp_path, FINGERPRINT, 2, maker)  # of another width nothing is known
    assert maker.made == 2


@pytest.mark.parametrize("damage", ["", "{", '{"ms": "soon"}', '{"ms": -1.0}', '{"ms": NaN}', "[]"])
def test_a_damaged_record_is_measured_again(tmp_path: Path, damage: str) -> None:
    maker = Maker()
    level_ms(tmp_path, FINGERPRINT, 3, maker)
    [record] = (tmp_path / "hashes").iterdir()
    record.write_text(damage)
    assert level_ms(tmp_path, FINGERPRINT, 3, maker) > 0
    assert maker.made == 2
