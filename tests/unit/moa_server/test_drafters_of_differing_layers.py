"""Drafters for a target whose layers differ: they name the widest one, and reuse no layer that needs more than rows."""

from dataclasses import replace
from pathlib import Path

import pytest
from moa_server.loading import check_drafter
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles
from moa_shared.models.network.layer_sizes import kv_width_if_differing

from tests.support.families import tiny_dense
from tests.support.tiny_models import SIZES, save_drafter

pytestmark = pytest.mark.torch


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    config = tiny_dense("gemma 4 with embeddings by layer").config.to_dict()
    return ModelFiles("gemma", tmp_path, config, (), "", "")


def config_for(files: ModelFiles) -> DrafterConfig:
    return DrafterConfig(
        vocab_size=SIZES["vocab_size"], hidden_size=64, target_layers=6, target_heads=4, target_kv_heads=2,
        target_head_dim=32, sa_kv_heads=2, sa_mlp=16, ca_kv_heads=2, ca_mlp=16, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=16,
        target_kv_width=kv_width_if_differing(files.config),
    )  # fmt: skip


def test_its_rows_are_of_the_widest_layer(files: ModelFiles, tmp_path: Path) -> None:
    fitting = config_for(files)
    assert check_drafter(save_drafter(tmp_path / "it.safetensors", fitting), files).config.kv_width == 256
    with pytest.raises(CheckpointError, match="safetensors is for another target: its KV width is"):
        check_drafter(save_drafter(tmp_path / "it.safetensors", replace(fitting, target_kv_width=0)), files)


def test_it_reuses_no_layers(files: ModelFiles, tmp_path: Path) -> None:
    path = save_drafter(tmp_path / "it.safetensors", replace(config_for(files), reused_layers=2))
    with pytest.raises(CheckpointError, match="safetensors runs the last"):
        check_drafter(path, files)
