"""The end of the daemon's log."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from inline_snapshot import snapshot
from moa_client.daemon.process import tail
from moa_shared.errors import NotFoundError

from tests.support.messages import raises


def test_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1\n2\n3\n")
    assert list(tail(log, 2, follow=False)) == ["2\n", "3\n"]
    assert list(tail(log, 0, follow=False)) == []


def test_it_is_followed_also_into_a_new_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1\n")
    lines = tail(log, 5, follow=True)
    assert next(lines) == "1\n"
    with log.open("a") as file:
        file.write("2\n")
    assert next(lines) == "2\n"
    log.rename(tmp_path / "old")
    log.write_text("3\n4\n")
    assert list(islice(lines, 2)) == ["3\n", "4\n"]
    lines.close()  # type: ignore[attr-defined]


def test_there_may_be_none(tmp_path: Path) -> None:
    with raises(NotFoundError, snapshot("There is no log at TMP/log. No daemon has been started there yet.")):
        list(tail(tmp_path / "log", 1, follow=False))
