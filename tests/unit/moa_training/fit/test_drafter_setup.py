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


@pytest.mark.parametrize("family", [family for family in DENSE_FAMILIES if family != "mistral without a window"])
def test_targets_of_another_form_are_refused(family: str) -> None:
    files = ModelFiles("tiny", Path(), tiny_dense(family).config.to_dict(), (), "", "")
    with pytest.raises(ConfigError, match=r"^Drafters are not trained for tiny, a "):
        drafter_config(SETTINGS, files)


def test_the_refusal_names_what_can_be_trained() -> None:
    files = ModelFiles("mine", Path(), tiny_dense("mistral").config.to_dict(), (), "", "")
    with raises(
        ConfigError,
        snapshot(
            "Drafters are not trained for mine, a mistral with sliding windows: only for llama, qwen2, qwen3, mistral without sliding windows. Choose another target."
        ),
    ):
        drafter_config(SETTINGS, files)
