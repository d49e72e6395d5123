"""The cache folder: entries that appear whole, locks, and hashes that are remembered."""

import asyncio
import errno
import hashlib
import io
import shutil
import threading
import time
from collections import namedtuple
from pathlib import Path

import filelock
import pytest
from moa_shared.errors import ChecksumError, ConfigError, DiskFullError
from moa_shared.models.storage import cache as sources_cache
from moa_shared.models.storage.cache import (
    building,
    cache_root,
    check_manifest,
    locked,
    locked_meanwhile,
    remembered_hash,
    require_space,
    write_manifest,
    writing,
)
from moa_shared.programs.progress import PlainProgress

from tests.support.messages import says

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - 60_000_000, 60_000_000))


def test_the_folder_is_the_argument_then_the_environment_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "named"))
    assert cache_root(tmp_path / "given") == tmp_path / "given"
    assert cache_root() == tmp_path / "named"
    assert (tmp_path / "named").is_dir()
    monkeypatch.delenv("MOA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root().is_relative_to(tmp_path)


def test_too_little_room_says_how_much_and_where(tmp_path: Path, nearly_full: None) -> None:
    require_space(tmp_path, 10_000_000, "a small thing")
    with pytest.raises(DiskFullError) as caught:
        require_space(tmp_path, 538_000_000, "The model")
    assert str(caught.value) == (
        f"The model needs 588.0 MB in {tmp_path}, where 60.0 MB are free. "
        "Free some space, or set MOA_CACHE_DIR to a folder on a larger disk."
    )


def test_an_entry_appears_whole_in_place_of_what_was_there(tmp_path: Path) -> None:
    entry = tmp_path / "one"
    for folder in (entry, tmp_path / "one.part-dead"):  # of a process that was killed
        folder.mkdir()
        (folder / "old").write_text("old")
    with locked(entry), building(entry, 10, "one") as part:
        (part / "new").write_text("new")
        assert not (entry / "new").exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "one", "one.lock"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_while_writing(tmp_path: Path, code: int) -> None:
    entry = tmp_path / "one"
    with (
        says(DiskFullError, "The disk of TMP ran full while writing one; 51.0 MB are needed in all"),
        locked(entry),
        building(entry, 1_000_000, "one") as part,
    ):
        (part / "a").write_text("half")
        raise OSError(code, "no")
    assert [path.name for path in tmp_path.iterdir()] == ["one.lock"]


def test_who_waits_for_a_lock_says_so(tmp_path: Path) -> None:
    entry, said, held = tmp_path / "one", io.StringIO(), threading.Event()

    def hold() -> None:
        with filelock.FileLock(tmp_path / "one.lock"):
            held.set()
            while not said.getvalue():
                time.sleep(0.001)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with locked(entry, PlainProgress(said)):
        assert said.getvalue().startswith(f"Waiting for another moa program, which is writing {entry} ...\n")
    holder.join()


async def test_a_loop_that_waits_for_a_lock_does_other_things(tmp_path: Path) -> None:
    entry, said = tmp_path / "one", io.StringIO()
    other = filelock.FileLock(tmp_path / "one.lock")
    other.acquire()
    asyncio.get_running_loop().call_later(0.01, other.release)
    async with locked_meanwhile(entry, PlainProgress(said), asyncio.sleep):
        assert "Waiting for another moa program" in said.getvalue()
        with pytest.raises(filelock.Timeout):
            other.acquire(timeout=0)
    with other.acquire(timeout=0):
        pass


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EACCES, ConfigError), (errno.EROFS, ConfigError)]
)
def test_what_cannot_be_written_is_an_error_of_the_catalogue(tmp_path: Path, code: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(tmp_path)), writing(tmp_path, "a file"):
        raise OSError(code, "no")


def sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_an_unchanged_file_is_read_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert remembered_hash(path, cache) == sha(b"one")
    with monkeypatch.context() as patch:
        patch.setattr(sources_cache, "hash_file", lambda *_: pytest.fail("read again"))
        assert remembered_hash(path, cache) == sha(b"one")
    path.write_bytes(b"two")
    assert remembered_hash(path, cache) == sha(b"two")


def test_a_damaged_record_and_a_cache_that_cannot_be_written_only_cost_time(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    remembered_hash(path, cache)
    for record in (cache / "hashes").iterdir():
        record.write_text("[not json")
    assert remembered_hash(path, cache) == sha(b"one")
    assert remembered_hash(path, path / "no-folder") == sha(b"one")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    folder = tmp_path / "entry"
    folder.mkdir()
    (folder / "weights").write_bytes(b"12345678")
    write_manifest(folder, "tiny", "0" * 64)
    return folder


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "TMP/entry/weights is missing. Delete TMP/entry;"),
        (b"1234567X", "TMP/entry/weights has the sha256 DIGEST, expected DIGEST. Delete TMP/entry;"),
    ],
)
def test_a_file_that_is_not_that_of_the_manifest(entry: Path, cache: Path, content: bytes | None, message: str) -> None:
    check_manifest(entry, cache)
    (entry / "weights").unlink()
    if content is not None:
        (entry / "weights").write_bytes(content)
    with says(ChecksumError, message):
        check_manifest(entry, cache)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, '{"target_id": "a", "files": {"weights": 5}}'])
def test_a_damaged_manifest(entry: Path, cache: Path, text: str) -> None:
    (entry / "manifest.json").write_text(text)
    with pytest.raises(ChecksumError, match=r"manifest of .* cannot be read"):
        check_manifest(entry, cache)
