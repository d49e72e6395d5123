from __future__ import annotations

from pathlib import Path

from inline_snapshot import snapshot
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_training.fit.drafter_setup import drafter_config
from moa_training.settings import FitSettings

from tests.support.dense_families import tiny_dense
from tests.support.messages import raises


def test_targets_whose_layers_differ_are_refused() -> None:
    settings = FitSettings.model_validate({"shards": ["a"], "output": "out", "budget": {"tokens": 1}})
    files = ModelFiles("gemma", Path(), tiny_dense("gemma 4").config.to_dict(), (), "", "")
    with raises(
        ConfigError,
        snapshot(
            "Drafters are not trained for gemma: the layers of the family gemma4_text differ in their sizes. Choose another target."
        ),
    ):
        drafter_config(settings, files)
