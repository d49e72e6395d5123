from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_training.fit.drafter_setup import drafter_config
from moa_training.settings import FitSettings

from tests.support.dense_families import DENSE_FAMILIES, tiny_dense
from tests.support.messages import raises

SETTINGS = FitSettings.model_validate({"shards": ["a"], "output": "out", "budget": {"tokens": 1}})


@pytest.mark.parametrize("family", [family for family in DENSE_FAMILIES if "gemma 4" not in family])
def test_a_drafter_turns_as_the_layers_that_see_all_positions(family: str, tmp_path: Path) -> None:
    config = tiny_dense(family).config
    config.save_pretrained(tmp_path)
    made = drafter_config(SETTINGS, ModelFiles("tiny", tmp_path, config.to_dict(), (), "", ""))
    expected = config.rope_parameters.get("full_attention", config.rope_parameters)
    assert made.rope_parameters == expected
    assert made.rope_parameters["rope_theta"] > 0


def test_targets_whose_layers_differ_are_refused() -> None:
    files = ModelFiles("gemma", Path(), tiny_dense("gemma 4").config.to_dict(), (), "", "")
    with raises(
        ConfigError,
        snapshot(
            "Drafters are not trained for gemma: the layers of the family gemma4_text differ in their sizes. Choose another target."
        ),
    ):
        drafter_config(SETTINGS, files)
