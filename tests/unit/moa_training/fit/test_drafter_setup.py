from __future__ import annotations

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.drafter import DrafterConfig
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_training.fit.drafter_setup import drafter_config
from moa_training.settings import DrafterSettings, FitSettings

from tests.support.dense_families import DENSE_FAMILIES, tiny_dense
from tests.support.messages import raises
from tests.support.tiny_models import SMALL, tiny_model

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


@pytest.mark.parametrize(("kind", "entries"), [("eagle3", (2, 15, 27)), ("dflash", (2, 9, 15, 21, 28))])
def test_the_states_read_are_the_authors_unless_they_are_chosen(
    tmp_path: Path, kind: str, entries: tuple[int, ...]
) -> None:
    def configured(layers: int, **chosen: object) -> DrafterConfig:
        made = tiny_model("qwen3", **SMALL, num_hidden_layers=layers).config
        (tmp_path / "config.json").write_text(json.dumps(made))
        drafter = DrafterSettings.model_validate({"kind": kind, **chosen})
        asked = SETTINGS.model_copy(update={"drafter": drafter})
        return drafter_config(asked, ModelFiles("tiny", tmp_path, made, (), "", ""))

    assert configured(30).state_entries == entries
    assert configured(30).head_norms  # as the target's
    assert configured(30, state_entries=[0, 30]).state_entries == (0, 30)
    with pytest.raises(ConfigError, match="A target of 2 layers has too few"):
        configured(2)
    with pytest.raises(ConfigError, match="state_entries must be 0 to target_layers"):
        configured(30, state_entries=[31])
