"""The lock that makes the daemon the only one."""

from __future__ import annotations

from pathlib import Path

from inline_snapshot import snapshot
from moa_client.daemon.paths import DaemonLock, Holder, find_holder
from moa_shared.errors import ConfigError

from tests.support.messages import raises

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
