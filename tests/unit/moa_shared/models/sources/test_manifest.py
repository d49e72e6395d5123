from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ChecksumError
from moa_shared.models.sources.digest import check_manifest, write_manifest

from tests.support.messages import raises


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    folder = tmp_path / "entry"
    folder.mkdir()
    (folder / "weights").write_bytes(b"12345678")
    write_manifest(folder, "tiny", "0" * 64)
    return folder


def test_a_whole_entry_passes(entry: Path, cache: Path) -> None:
    assert check_manifest(entry, cache) == "tiny"


def test_a_missing_file(entry: Path, cache: Path) -> None:
    (entry / "weights").unlink()
    with raises(
        ChecksumError,
        snapshot(
            "TMP/entry/weights is missing, expected 8 bytes. Delete TMP/entry; it is built again at the next start."
        ),
    ):
        check_manifest(entry, cache)


def test_a_truncated_file(entry: Path, cache: Path) -> None:
    (entry / "weights").write_bytes(b"123")
    with raises(
        ChecksumError,
        snapshot(
            "TMP/entry/weights has 3 bytes, expected 8 bytes. Delete TMP/entry; it is built again at the next start."
        ),
    ):
        check_manifest(entry, cache)


def test_a_changed_file_of_the_same_size(entry: Path, cache: Path) -> None:
    check_manifest(entry, cache)
    (entry / "weights").write_bytes(b"1234567X")
    with raises(
        ChecksumError,
        snapshot(
            "TMP/entry/weights has the sha256 DIGEST, expected DIGEST. Delete TMP/entry; it is built again at the next start."
        ),
    ):
        check_manifest(entry, cache)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, '{"target_id": "a", "files": {"weights": 5}}'])
def test_a_damaged_manifest(entry: Path, cache: Path, text: str) -> None:
    (entry / "manifest.json").write_text(text)
    with pytest.raises(ChecksumError, match=r"manifest of .* cannot be read"):
        check_manifest(entry, cache)
