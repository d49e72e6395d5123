"""Where the daemon's files are, and who may enter their folder."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.daemon.paths import DaemonLock, DaemonPaths, Holder, find_holder, find_paths, make_folder
from moa_shared.errors import ConfigError

from tests.support.messages import raises


def test_they_are_in_the_runtime_folder_or_else_in_that_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert find_paths(None).folder == Path("/run/user/7/moa")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ada/.local/state")
    assert find_paths(None).socket == Path("/home/ada/.local/state/moa/run/daemon.sock")
    assert find_paths(Path("/tmp/mine")).lock == Path("/tmp/mine/daemon.lock")


def test_only_the_user_can_enter_the_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        paths = DaemonPaths(Path(short) / "open" / "moa")
        paths.folder.mkdir(parents=True, mode=0o755)
        os.chmod(paths.folder, 0o755)
        make_folder(paths)
        assert stat.S_IMODE(paths.folder.stat().st_mode) == 0o700


def test_a_path_that_no_socket_can_have_is_refused() -> None:
    with raises(
        ConfigError,
        snapshot(
            "/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/daemon.sock is too long for the path of a socket. Name a shorter folder with --daemon-dir."
        ),
    ):
        make_folder(DaemonPaths(Path("/" + "x" * 90)))


def test_a_folder_that_cannot_be_made_is_an_error() -> None:
    with raises(
        ConfigError,
        snapshot("The daemon's folder /dev/null/moa cannot be made: Not a directory. Name another with --daemon-dir."),
    ):
        make_folder(DaemonPaths(Path("/dev/null/moa")))


def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o755)
    link.symlink_to(mine)
    make_folder(DaemonPaths(link))  # one's own may be
    mine.chmod(0o755)
    found = list(link.lstat())
    found[stat.ST_UID] = os.getuid() + 1
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result(found))
    with raises(
        ConfigError, snapshot("The daemon's folder TMP/link belongs to another user. Name another: --daemon-dir.")
    ):
        make_folder(DaemonPaths(link))
    assert stat.S_IMODE(mine.stat().st_mode) == 0o755


ME = Holder(1234, 5.0, "0.1.0")


def test_its_holder_is_known_as_long_as_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert find_holder(path) is None
    lock = DaemonLock(path, ME)
    assert find_holder(path) == ME
    with raises(
        ConfigError,
        snapshot("A daemon is already running (process 1234). `moa-client daemon status` says more about it."),
    ):
        DaemonLock(path, Holder(1, 2.0, "0.1.0"))
    assert find_holder(path) == ME
    lock.release()
    assert find_holder(path) is None
