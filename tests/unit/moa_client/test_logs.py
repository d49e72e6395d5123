from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.logs import configure_log, default_log_file
from moa_shared.errors import ConfigError

from tests.support.messages import raises
from tests.support.programs import environment

LOG = logging.getLogger("moa_client")


@pytest.fixture(autouse=True)
def _log_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = LOG.handlers, LOG.level, LOG.propagate
    yield
    for handler in LOG.handlers:
        handler.close()
    LOG.handlers, LOG.level, LOG.propagate = before


def test_lines_go_to_the_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(tmp_path / "log")
    LOG.getChild("link.connection").debug("opened")
    LOG.getChild("link.connection").warning("lost")
    [line] = (tmp_path / "log").read_text().splitlines()
    assert line.endswith(": lost")
    assert " WARNING client " in line
    assert capsys.readouterr() == ("", "")


def test_the_default_file_is_made_with_the_first_line(tmp_path: Path) -> None:
    configure_log(None)
    path = default_log_file()
    assert path.is_relative_to(tmp_path / "state")
    assert not path.exists()
    LOG.warning("lost")
    assert path.read_text().count("\n") == 1


def test_a_default_file_that_cannot_be_written_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    configure_log(None)
    LOG.warning("lost")
    assert capsys.readouterr() == ("", "")


def test_a_named_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with raises(
        ConfigError,
        snapshot(
            "The log file TMP/none/log cannot be written: No such file or directory. Name another with --log-file."
        ),
    ):
        configure_log(tmp_path / "none" / "log")


def test_the_package_as_a_library_logs_nothing_by_itself() -> None:
    """In a process of its own: another test may have run the program in this one."""
    program = "import logging, moa_client.link; logging.getLogger('moa_client.link').warning('lost')"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment("client"), capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
