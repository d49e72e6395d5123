"""What tables say of the drafter that was measured."""

from dataclasses import replace
from pathlib import Path

import pytest
from moa_bench.harness.stage import NAMED, UNTRAINED_VOCAB, BenchDrafter, untrained_drafter
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.models import ModelFiles

from tests.support.families import tiny_dense

pytestmark = pytest.mark.torch

CONFIG = DrafterConfig(
    vocab_size=64, hidden_size=16, target_layers=2, target_heads=2, target_kv_heads=1, target_head_dim=8, sa_kv_heads=1,
    sa_mlp=16, ca_kv_heads=1, ca_mlp=16, lsa_heads=1, lsa_kv_heads=1, lsa_mlp=16,
)  # fmt: skip


def test_a_drafter_is_described_by_its_kind() -> None:
    config = replace(CONFIG, reused_layers=1, draft_vocab=32)
    assert BenchDrafter(Checkpoint(config, {}, ""), NAMED).description == "named by path, N = 1, 32 draft tokens"


def test_an_untrained_drafter_is_of_the_target_and_has_a_small_head(tmp_path: Path) -> None:
    config = tiny_dense("gemma 3").config
    files = ModelFiles("tiny", tmp_path, config.to_dict(), (), "abc", "")
    made = untrained_drafter(files).checkpoint.config
    assert (made.target_fingerprint, made.hidden_size) == ("abc", config.hidden_size)
    assert made.draft_vocab == min(UNTRAINED_VOCAB, config.vocab_size)
