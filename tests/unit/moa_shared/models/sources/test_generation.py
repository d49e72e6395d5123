from __future__ import annotations

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.sources.generation import read_sampling_defaults
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
