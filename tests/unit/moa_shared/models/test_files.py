"""A model's folder: what it is, and what its files say of its use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_server.service.services import ModelPooling, find_pooling
from moa_shared.errors import ModelSourceError
from moa_shared.models import files as trial
from moa_shared.models import resolve
from moa_shared.models.files import (
    ModelFiles,
    Pooling,
    accept_tokenizer,
    describe_folder,
    end_of_text,
    hash_tokenizer,
    read_sampling_defaults,
)
from moa_shared.sampling.settings import DEFAULTED
from moa_shared.sandbox.child import TextChild
from safetensors.torch import load_file, save_file

from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter, write_hostile

pytestmark = pytest.mark.torch


def describe(folder: Path, cache: Path) -> ModelFiles:
    return describe_folder(folder, "tiny", cache)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_fingerprint_follows_the_mathematics(model_folder: Path, cache: Path) -> None:
    first = describe(model_folder, cache).fingerprint
    change_config(model_folder, transformers_version="9.9", dtype="bfloat16", use_cache=False, something_new=1)
    assert describe(model_folder, cache).fingerprint == first
    change_config(model_folder, rms_norm_eps=0.5)
    second = describe(model_folder, cache).fingerprint
    assert second != first
    weights = load_file(model_folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    save_file(weights, model_folder / "model.safetensors", metadata={"format": "pt"})
    assert describe(model_folder, cache).fingerprint not in (first, second)


def shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"part-2.safetensors": names[::2], "part-1.safetensors": names[1::2]}
    for part, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / part, metadata={"format": "pt"})
    weight_map = {name: part for part, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_found_by_the_index(model_folder: Path, cache: Path) -> None:
    shard(model_folder)
    files = describe(model_folder, cache)
    assert [path.name for path in files.weights] == ["part-1.safetensors", "part-2.safetensors"]
    (model_folder / "part-2.safetensors").unlink()
    with says(ModelSourceError, "TMP/tiny-llama/model.safetensors.index.json names part-2.safetensors, which"):
        describe(model_folder, cache)


@pytest.mark.parametrize("index", ["[" * 100_000, '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/passwd"}}'])
def test_an_index_that_makes_no_sense(model_folder: Path, cache: Path, index: str) -> None:
    shard(model_folder)
    (model_folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelSourceError, match=r"cannot be read|is not there"):
        describe(model_folder, cache)


def files(folder: Path, **config: Any) -> ModelFiles:
    return ModelFiles("tiny", folder, config, (), "", "")


def test_a_value_that_cannot_be_used_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    with pytest.raises(ModelSourceError) as caught:
        read_sampling_defaults(files(tmp_path))
    assert str(caught.value).replace(str(tmp_path), "FOLDER") == snapshot(
        "FOLDER/generation_config.json cannot be used: temperature is -1.0, expected 0 (greedy) or 0.001 to 100. Correct that value in the model's folder, or remove it."
    )


def test_a_gguf_file_says_how_llama_cpp_would_sample(write_gguf: GgufWriter, cache: Path) -> None:
    said = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.1}
    off = {"temp": -1.0, "top_k": -1, "top_p": 1.5, "min_p": -0.5, "penalty_last_n": -1}
    for name, sampling, expected in (
        ("said.gguf", said, (0.6, 20, 0.95, 0.05, 1.1, 64)),
        ("off.gguf", off, (0.0, 0, 1.0, 0.0, None, -1)),
    ):
        found = read_sampling_defaults(resolve(str(write_gguf(name, sampling=sampling)), cache))
        assert tuple(map(found.get, DEFAULTED)) == expected


def test_the_default_model_is_sampled_as_its_authors_recommend(default_model_files: ModelFiles) -> None:
    said = {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 64}
    assert read_sampling_defaults(default_model_files) == said


def test_every_source_of_end_of_text_counts(tmp_path: Path) -> None:
    for config, generation, tokenizer, expected in (
        ({"eos_token_id": 2}, {}, None, {2}),
        ({"eos_token_id": [2, 3]}, {}, 5, {2, 3, 5}),
        ({}, {"eos_token_id": [7]}, None, {7}),
        ({"eos_token_id": None}, {}, None, set()),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        assert end_of_text(files(tmp_path, **config), tokenizer) == expected


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"eos_token_id": {"a": 1}}'])
def test_generation_settings_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelSourceError, match="cannot be read"):
        end_of_text(files(tmp_path), None)


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
    for content in ("{", "[]", "{}", '{"pooling_mode_cls_token": true}'):
        (tmp_path / "1_Pooling" / "config.json").write_text(content)
        with pytest.raises(ModelSourceError):
            find_pooling(files(tmp_path))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were tried in a child."""
    folders: list[Path] = []

    class Counted(TextChild):
        def ask(self, function: str, **given: Any) -> Any:
            folders.append(Path(given["folder"]))
            return super().ask(function, **given)

    monkeypatch.setattr(trial, "TextChild", Counted)
    monkeypatch.setattr(trial, "_passed", set())
    return folders


def forget() -> None:
    """As another process that begins."""
    trial._passed.clear()


def test_files_are_tried_once(tmp_path: Path, cache: Path, tried: list[Path]) -> None:
    write_hostile(tmp_path, "none")
    for _ in range(2):
        assert accept_tokenizer(tmp_path, cache) == hash_tokenizer(tmp_path, cache)
        forget()
    assert tried == [tmp_path]
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for _ in range(2):
        accept_tokenizer(tmp_path, cache)
        forget()
    assert tried == [tmp_path, tmp_path]


@pytest.mark.parametrize("kind", ["prefix", "normaliser", "decoder"])
def test_a_tokenizer_that_fails_is_refused_each_time(tmp_path: Path, cache: Path, tried: list[Path], kind: str) -> None:
    write_hostile(tmp_path, kind)
    for _ in range(2):
        with pytest.raises(ModelSourceError, match=r"The tokenizer or the chat template in .* cannot be used"):
            accept_tokenizer(tmp_path, cache)
    assert len(tried) == 2


def test_a_template_that_refuses_the_trial_is_accepted(tmp_path: Path, cache: Path, tried: list[Path]) -> None:
    write_hostile(tmp_path, "none")
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('Roles must alternate.') }}")
    accept_tokenizer(tmp_path, cache)
    assert tried


Edit = Callable[[dict[str, Any]], object]


def edited(folder: Path, edit: Edit) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    edit(content)
    path.write_text(json.dumps(content, indent=3), "utf-8")


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.update(version="2.0", something_new=None),
        lambda content: content["model"].update(dropout=None, ignore_merges=False),
        lambda content: content["pre_tokenizer"].update(new_option=False),
        lambda content: content["model"].update(merges=[" ".join(pair) for pair in content["model"]["merges"]]),
        lambda content: content["added_tokens"].reverse(),
    ],
)
def test_another_spelling_of_the_same_tokenizer(model_folder: Path, cache: Path, edit: Edit) -> None:
    first = hash_tokenizer(model_folder, cache)
    edited(model_folder, edit)
    assert hash_tokenizer(model_folder, cache) == first


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["model"]["vocab"].update(new=999),
        lambda content: content["model"]["merges"].pop(),
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content["added_tokens"].pop(),
        lambda content: content["pre_tokenizer"].update(use_regex=False),
        lambda content: content.update(normalizer={"type": "Lowercase"}),
    ],
)
def test_another_tokenizer(model_folder: Path, cache: Path, edit: Edit) -> None:
    first = hash_tokenizer(model_folder, cache)
    edited(model_folder, edit)
    assert hash_tokenizer(model_folder, cache) != first
