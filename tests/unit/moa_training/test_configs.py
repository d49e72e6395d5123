"""The configurations and shards that come with the checkout can be used as they are."""

from pathlib import Path

import pytest
from moa_shared.models import ModelFiles
from moa_training.data.shards import find_shards, read_shard
from moa_training.settings import load_fit_settings

TRAINING = Path(__file__).resolve().parents[3] / "training"


@pytest.mark.parametrize("path", sorted((TRAINING / "configs").rglob("*.toml")), ids=lambda path: path.stem)
def test_each_configuration_is_valid_and_finds_its_shards(path: Path) -> None:
    settings = load_fit_settings(path)
    assert find_shards(settings.shards)


def test_the_shards_are_of_the_default_target(default_model_files: ModelFiles) -> None:
    vocab = int(default_model_files.config["vocab_size"])
    for path in find_shards([TRAINING / "data"]):
        assert all(row.ids for row in read_shard(path, default_model_files.tokenizer_hash, vocab))
