"""Files that are whole or not at all, and those of secrets."""

import errno
import os
import stat
from pathlib import Path

import pytest
from moa_shared.programs.atomic import create_private, open_to_others, whole_file, write_private


@pytest.mark.parametrize("several_writers", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_written_whole(tmp_path: Path, several_writers: bool, durable: bool) -> None:
    path = tmp_path / "new" / "file"
    with whole_file(path, several_writers=several_writers, durable=durable) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o444 == 0o444  # others may read it
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("several_writers", [False, True])
def test_a_writer_that_fails_changes_nothing(tmp_path: Path, several_writers: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half(error: BaseException) -> None:
        with whole_file(path, several_writers=several_writers) as partial:
            partial.write_text("half")
            raise error

    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
        with pytest.raises(type(error)):
            write_half(error)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_several_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path, several_writers=True) as first:
        first.write_text("first")
        with whole_file(path, several_writers=True) as second:
            second.write_text("second")
    assert path.read_text() == "first"


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.with_name("file.partial").write_text("of a killed one, and longer")
    with whole_file(path) as partial:
        partial.write_text("new")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "new")]


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.with_name("file.partial").write_text("of a killed writer, which everybody may read")
    write_private(path, b"new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileExistsError):
        create_private(path, b"other")


US, ROOT = 1000, 0


def file_of(owner: int, mode: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, US, 0, 0, 0, 0))


@pytest.mark.parametrize(("owner", "before", "mode"), [(US, 0o600, 0o600), (US, 0o644, 0o600), (ROOT, 0o640, 0o640)])
def test_what_root_replaces_stays_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, before: int, mode: int
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda handle, user, group: given.append((user, group)))
    create_private(tmp_path / "file", b"new", file_of(owner, before))
    assert given == [(owner, US)]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    write_private(tmp_path / "file", b"newer")
    assert given[1:] == [(os.getuid(), os.getgid())]


@pytest.mark.parametrize(
    ("owner", "closed", "opened"),
    [
        (US, (0o600, 0o400), (0o640, 0o604)),
        (ROOT, (0o440, 0o640), (0o660, 0o644)),  # a Secret of Kubernetes, of which the server's group is told
    ],
)
def test_who_may_use_a_file(
    monkeypatch: pytest.MonkeyPatch, owner: int, closed: tuple[int, ...], opened: tuple[int, ...]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: US)
    assert not any(open_to_others(file_of(owner, mode)) for mode in closed)
    assert all(open_to_others(file_of(owner, mode)) for mode in opened)
