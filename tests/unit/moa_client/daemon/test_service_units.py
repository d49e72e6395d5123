"""What starts the daemon at login."""

from __future__ import annotations

import plistlib
from pathlib import Path

from inline_snapshot import snapshot
from moa_client.daemon.service_units import make_unit
from moa_shared.errors import ConfigError

from tests.support.messages import raises

HOME = Path("/home/ada")


def test_a_launchd_agent() -> None:
    unit = make_unit("darwin", "/opt/moa/bin/python", ["--server", "gpu:50051"], HOME)
    agent = plistlib.loads(unit.text.encode())
    assert agent["ProgramArguments"][-4:] == ["daemon", "run", "--server", "gpu:50051"]
    assert unit.path == HOME / "Library/LaunchAgents/moa-client.plist"


def test_it_is_written_in_place_of_an_earlier_one(tmp_path: Path) -> None:
    for options in ([], ["--server", "gpu:50051"]):
        unit = make_unit("linux", "python", options, tmp_path)
        unit.write()
        assert unit.path.read_text() == unit.text


def test_what_cannot_be_written_or_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("a file")
    with raises(
        ConfigError,
        snapshot(
            "TMP/.config/systemd/user/moa-client.service cannot be written: Not a directory. See --print for its text."
        ),
    ):
        make_unit("linux", "python", [], tmp_path).write()
    with raises(
        ConfigError, snapshot("There is no unit for win32. Have your system run `moa-client daemon run` at login.")
    ):
        make_unit("win32", "python", [], tmp_path)
