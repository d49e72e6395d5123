"""How a model's states are pooled, by its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.sources.generation import (
    GGUF_KEY,
    ModelPooling,
    Pooling,
    end_of_text,
    find_pooling,
    read_sampling_defaults,
)
from moa_shared.sampling.settings import SamplingDefaults

from tests.support.tiny_gguf import GgufWriter


def files_in(folder: Path) -> ModelFiles:
    return ModelFiles("tiny", folder, {}, (), "", "")


def test_a_model_without_generation_settings_says_nothing(tmp_path: Path) -> None:
    assert read_sampling_defaults(files_in(tmp_path)) == SamplingDefaults()


def test_a_value_that_cannot_be_used_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    with pytest.raises(ModelSourceError) as caught:
        read_sampling_defaults(files_in(tmp_path))
    assert str(caught.value).replace(str(tmp_path), "FOLDER") == snapshot(
        "FOLDER/generation_config.json cannot be used: temperature is -1.0, expected 0 (greedy) or 0.001 to 100. Correct that value in the model's folder, or remove it."
    )


def test_a_gguf_file_says_how_llama_cpp_would_sample(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf(sampling={"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.1})
    assert read_sampling_defaults(resolve(str(path), cache)) == SamplingDefaults(0.6, 20, 0.95, 0.05, 1.1, 64)


def test_values_that_llama_cpp_reads_as_off(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf(sampling={"temp": -1.0, "top_k": -1, "top_p": 1.5, "min_p": -0.5, "penalty_last_n": -1})
    assert read_sampling_defaults(resolve(str(path), cache)) == SamplingDefaults(0.0, 0, 1.0, 0.0, None, -1)


def test_the_default_model_is_sampled_as_its_authors_recommend(default_model_files: ModelFiles) -> None:
    said = {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 64}
    assert read_sampling_defaults(default_model_files).said() == said


def test_a_gguf_file_that_says_nothing(write_gguf: GgufWriter, cache: Path) -> None:
    assert read_sampling_defaults(resolve(str(write_gguf()), cache)) == SamplingDefaults()


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
