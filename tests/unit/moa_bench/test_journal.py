"""The journal of measured cells: what a kill leaves, and what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.run import RunJournal
from moa_bench.suite import JsonObject
from moa_shared.errors import ConfigError, ConflictError, InternalError

from tests.support.messages import raises

HEADER = {"suite": "single", "commit": "abc", "effort": {"prompts": 2}}
KEYS = ("plain, round 0", "plain, round 1", "MoA, round 0")


@contextmanager
def opened(path: Path, header: JsonObject = HEADER, **options: Any) -> Iterator[RunJournal]:
    journal = RunJournal(path, header, **options)
    try:
        yield journal
    finally:
        journal.close()


def measure_all(journal: RunJournal) -> list[str]:
    """Asks for all cells; gives the keys of those that were measured now."""
    measured = []
    for number, key in enumerate(KEYS):

        def measure(key: str = key, number: int = number) -> JsonObject:
            measured.append(key)
            return {"speed": (number, float("inf")), "text": "ü\n"}

        assert journal.keep(key, measure) == {"speed": [number, float("inf")], "text": "ü\n"}
    return measured


def test_a_failed_cell_is_measured_again_and_what_was_before_is_kept(tmp_path: Path) -> None:
    def fail() -> JsonObject:
        raise KeyboardInterrupt

    with opened(tmp_path / "j") as journal:
        journal.keep(KEYS[0], lambda: {"speed": (0, float("inf")), "text": "ü\n"})
        with pytest.raises(KeyboardInterrupt):
            journal.keep(KEYS[1], fail)
    with opened(tmp_path / "j") as journal:
        assert (journal.resumed, measure_all(journal)) == (1, [*KEYS[1:]])


def test_another_header_begins_a_new_file_and_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        measure_all(journal)
    with opened(path, {**HEADER, "commit": "def", "model": "large"}) as journal:
        assert (journal.resumed, journal.outdated) == (0, ["commit", "model"])
        assert measure_all(journal) == list(KEYS)
    with opened(tmp_path / "j.old") as journal:
        assert journal.resumed == len(KEYS)


def test_afresh_forgets_and_a_finished_run_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        measure_all(journal)
    with opened(path, {"commit": "def"}, afresh=True) as journal:
        assert (journal.resumed, journal.outdated, measure_all(journal)) == (0, [], list(KEYS))
    with opened(path, {"commit": "def"}) as journal:
        assert (journal.resumed, journal.outdated) == (len(KEYS), [])
        journal.discard()
    assert list(tmp_path.iterdir()) == []


def test_one_writer_and_one_cell_a_key(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        with raises(
            ConflictError,
            snapshot("Another moa-bench writes TMP/j. Let it end, or stop it, and start again: nothing is lost."),
        ):
            RunJournal(path, HEADER)
        measure_all(journal)
        with pytest.raises(InternalError, match="The suite names two cells 'MoA, round 0'"):
            journal.keep(KEYS[2], dict)


@pytest.mark.parametrize("place", ["file/j", "file"])
def test_a_place_that_cannot_be_used(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("this is no database, and long enough for one to be seen")
    with pytest.raises(
        ConfigError, match=r"cannot be used: .+\. Make its folder one that you may write, or start again"
    ):
        RunJournal(tmp_path / place, HEADER)
