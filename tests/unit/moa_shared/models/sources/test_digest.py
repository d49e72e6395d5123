from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from moa_shared.errors import ChecksumError, NotFoundError
from moa_shared.models.sources import digest
from moa_shared.models.sources.digest import (
    canonical_json,
    check_manifest,
    combine,
    hash_file,
    remembered_hash,
    write_manifest,
)

from tests.support.messages import says


def sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_the_hash_is_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_001)
    assert hash_file(path) == sha(b"x" * 3_000_001)


def test_an_unchanged_file_is_read_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert remembered_hash(path, cache) == sha(b"one")
    with monkeypatch.context() as patch:
        patch.setattr(digest, "hash_file", lambda *_: pytest.fail("read again"))
        assert remembered_hash(path, cache) == sha(b"one")
    path.write_bytes(b"two")
    assert remembered_hash(path, cache) == sha(b"two")


def test_a_damaged_record_only_costs_time(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    remembered_hash(path, cache)
    for record in (cache / "hashes").iterdir():
        record.write_text("[not json")
    assert remembered_hash(path, cache) == sha(b"one")


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert remembered_hash(path, path / "no-folder") == sha(b"one")


def test_a_missing_file(tmp_path: Path, cache: Path) -> None:
    with says(NotFoundError, "There is no file TMP/none"):
        remembered_hash(tmp_path / "none", cache)


def test_one_value_has_one_spelling() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == canonical_json({"a": [1.5, "ü"], "b": 1})
    assert combine(["a", "b"]) != combine(["ab"])


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    folder = tmp_path / "entry"
    folder.mkdir()
    (folder / "weights").write_bytes(b"12345678")
    write_manifest(folder, "tiny", "0" * 64)
    return folder


def test_a_whole_entry_passes(entry: Path, cache: Path) -> None:
    assert check_manifest(entry, cache) == "tiny"


def test_a_missing_file_of_manifest(entry: Path, cache: Path) -> None:
    (entry / "weights").unlink()
    with says(ChecksumError, "TMP/entry/weights is missing, expected 8 bytes"):
        check_manifest(entry, cache)


def test_a_truncated_file(entry: Path, cache: Path) -> None:
    (entry / "weights").write_bytes(b"123")
    with says(ChecksumError, "TMP/entry/weights has 3 bytes, expected 8 bytes"):
        check_manifest(entry, cache)


def test_a_changed_file_of_the_same_size(entry: Path, cache: Path) -> None:
    check_manifest(entry, cache)
    (entry / "weights").write_bytes(b"1234567X")
    with says(ChecksumError, "TMP/entry/weights has the sha256 DIGEST, expected DIGEST. Delete TMP/entry;"):
        check_manifest(entry, cache)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, '{"target_id": "a", "files": {"weights": 5}}'])
def test_a_damaged_manifest(entry: Path, cache: Path, text: str) -> None:
    (entry / "manifest.json").write_text(text)
    with pytest.raises(ChecksumError, match=r"manifest of .* cannot be read"):
        check_manifest(entry, cache)
