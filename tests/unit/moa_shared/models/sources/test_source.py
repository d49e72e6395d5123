from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from moa_shared.errors import ChecksumError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models import resolve
from moa_shared.models.sources import packaged, source

from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter

ROOT = Path(__file__).resolve().parents[5]


def test_reading_needs_neither_torch_nor_transformers() -> None:
    modules = (
        "weights.weights",
        "weights.parts",
        "tokenizer.tokenizer",
        "sources.packaged",
        "sources.hub",
        "gguf.entry",
    )
    heavy = ("torch", "transformers", "gguf", "safetensors", "huggingface_hub")
    code = f"import sys, {', '.join(f'moa_shared.models.{name}' for name in modules)}; "
    code += f"sys.exit(any(name in sys.modules for name in {heavy}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "shared")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0


def test_a_folder(model_folder: Path, cache: Path) -> None:
    files = resolve(str(model_folder), cache)
    assert files.folder == model_folder
    assert files.target_id == "tiny-llama"


def test_a_gguf_file_and_the_folder_that_holds_only_it(write_gguf: GgufWriter, cache: Path, tmp_path: Path) -> None:
    path = write_gguf()
    files = resolve(str(path), cache)
    assert files.target_id == "tiny"
    assert files.folder.is_relative_to(cache)
    alone = tmp_path / "alone"
    alone.mkdir()
    path.rename(alone / path.name)
    assert resolve(str(alone), cache) == replace(files, weights=(alone / path.name,))
    (alone / "other.gguf").write_bytes(b"GGUF")
    with says(ModelSourceError, "The folder TMP/alone holds several GGUF files: other.gguf, tiny.gguf"):
        resolve(str(alone), cache)


def test_the_case_of_a_suffix_does_not_matter(write_gguf: GgufWriter, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    path = write_gguf().rename(tmp_path / "upper" / "Some.GGUF")
    assert resolve(str(path), cache).target_id == "Some"
    assert resolve(str(path.parent), cache).target_id == "Some"


def test_gguf_files_beside_other_weights(write_gguf: GgufWriter, model_folder: Path, cache: Path) -> None:
    (model_folder / "config.json").rename(model_folder / "kept.json")
    (model_folder / "model.safetensors").rename(model_folder / "kept")
    write_gguf().rename(model_folder / "some.gguf")
    whole = resolve(str(model_folder), cache)
    assert whole.folder.is_relative_to(cache)
    assert resolve(str(whole.folder), cache) == whole  # an entry of the cache may be named itself
    (model_folder / "kept.json").rename(model_folder / "config.json")
    (model_folder / "kept").rename(model_folder / "model.safetensors")
    assert resolve(str(model_folder), cache).folder == model_folder


def test_a_hub_id(model_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "fetch_from_hub", lambda spec, _: model_folder if spec == "some/model" else None)
    assert resolve("some/model", cache).target_id == "some/model"


@pytest.mark.parametrize("spec", ["no-such-model", "./no/such/folder", "", " ", "a/b/c"])
def test_what_is_nothing(spec: str, cache: Path) -> None:
    with pytest.raises(NotFoundError, match=r"There is no model .*Name a model with 'default'"):
        resolve(spec, cache)


def test_a_missing_gguf_file(cache: Path, tmp_path: Path) -> None:
    with says(NotFoundError, "There is no file TMP/none.gguf"):
        resolve(str(tmp_path / "none.gguf"), cache)


def test_a_file_that_is_no_model(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with says(ModelSourceError, "TMP/notes.txt is a file but not a .gguf file"):
        resolve(str(tmp_path / "notes.txt"), cache)


def test_an_empty_folder(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with says(ModelSourceError, "The folder TMP/empty holds no config.json"):
        resolve(str(tmp_path / "empty"), cache)


def test_a_damaged_entry_is_refused_until_it_is_deleted(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf()
    files = resolve(str(path), cache)
    config = files.folder / "config.json"
    config.write_text(config.read_text().replace("1e-05", "2e-05"))
    with says(ChecksumError, "TMP/cache/models/gguf-DIGEST-v8/config.json has the sha256 DIGEST, expected"):
        resolve(str(path), cache)
    for inside in files.folder.iterdir():
        inside.unlink()
    files.folder.rmdir()
    assert resolve(str(path), cache).fingerprint == files.fingerprint


@pytest.mark.parametrize(
    ("code", "expected", "message"),
    [
        (errno.ENOSPC, DiskFullError, "The disk of TMP/cache ran full while writing the model"),
        (errno.EACCES, ModelSourceError, "TMP/tiny-llama cannot be read: Permission denied"),
    ],
)
def test_other_trouble_with_the_disk(
    model_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception], message: str
) -> None:
    def describe_folder(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(source, "describe_folder", describe_folder)
    with says(expected, message):
        resolve(str(model_folder), cache)


def test_gemma_is_known_by_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "find_installed", lambda _: None)
    with says(ModelSourceError, "The gemma3-270m model, gemma-3-270m, is not installed"):
        resolve("gemma3-270m", cache)
