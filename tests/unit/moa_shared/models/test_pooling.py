"""How a model's states are pooled, by its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models.pooling import GGUF_KEY, ModelPooling, Pooling, find_pooling
from moa_shared.models.sources.files import ModelFiles


def files(folder: Path, **config: Any) -> ModelFiles:
    return ModelFiles("tiny", folder, config, (), "", "")


def write(folder: Path, content: str) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(content)


@pytest.mark.parametrize(
    ("mode", "kind"), [("pooling_mode_mean_tokens", Pooling.MEAN), ("pooling_mode_lasttoken", Pooling.LAST)]
)
def test_a_folder_says_it_as_sentence_transformers_does(tmp_path: Path, mode: str, kind: Pooling) -> None:
    modes = dict.fromkeys(["pooling_mode_cls_token", "pooling_mode_max_tokens", mode], False) | {mode: True}
    write(tmp_path, json.dumps({"word_embedding_dimension": 8, **modes, "include_prompt": True}))
    assert find_pooling(files(tmp_path)) == ModelPooling(kind, is_trained=True)


def test_a_gguf_file_says_it_in_its_configuration(tmp_path: Path) -> None:
    assert find_pooling(files(tmp_path, **{GGUF_KEY: "last"})) == ModelPooling(Pooling.LAST, is_trained=True)


def test_a_model_that_says_nothing_was_not_made_for_it(tmp_path: Path) -> None:
    assert find_pooling(files(tmp_path)) == ModelPooling(Pooling.MEAN, is_trained=False)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"pooling_mode_cls_token": true}',
        '{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true}',
    ],
)
def test_another_pooling_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, content)
    with pytest.raises(ModelSourceError):
        find_pooling(files(tmp_path))
