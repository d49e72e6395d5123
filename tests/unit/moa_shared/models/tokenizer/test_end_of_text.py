from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles
from moa_shared.models.sources.generation import end_of_text


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "expected"),
    [
        ({"eos_token_id": 2}, None, None, {2}),
        ({"eos_token_id": [2, 3]}, None, 5, {2, 3, 5}),
        ({}, {"eos_token_id": [7]}, None, {7}),
        ({"eos_token_id": None}, {}, None, set()),
    ],
)
def test_every_source_of_end_of_text_counts(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, tokenizer: int | None, expected: set[int]
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    files = ModelFiles("tiny", tmp_path, config, (), "", "")
    assert end_of_text(files, tokenizer) == expected


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"eos_token_id": {"a": 1}}'])
def test_generation_settings_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelSourceError, match="cannot be read"):
        end_of_text(ModelFiles("tiny", tmp_path, {}, (), "", ""), None)
