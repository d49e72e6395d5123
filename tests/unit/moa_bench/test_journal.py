"""The journal of measured cells: what a kill at any moment leaves, and what is refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_bench.journal import RunJournal
from moa_bench.suite import JsonObject
from moa_shared.errors import ConfigError, ConflictError, DataError, InternalError

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
            return {"speed": number, "text": "ü\n"}

        assert journal.keep(key, measure) == {"speed": number, "text": "ü\n"}
    return measured


@given(st.data())
def test_a_run_killed_at_any_byte_continues_with_all_whole_cells(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "single.jsonl"
        with opened(path, clock=lambda: 0.0) as journal:  # else the file's length depends on how long it takes
            assert measure_all(journal) == list(KEYS)
        whole = path.read_bytes()
        left = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:left])
        kept = max(0, whole[:left].count(b"\n") - 1)
        with opened(path) as journal:
            assert (journal.resumed, journal.outdated) == (kept, [])
            assert measure_all(journal) == list(KEYS[kept:])
        with opened(path) as journal:
            assert journal.resumed == len(KEYS)


def test_a_result_is_the_same_fresh_or_resumed(tmp_path: Path) -> None:
    fresh = []
    for _ in range(2):
        with opened(tmp_path / "j") as journal:
            fresh.append(journal.keep("a", lambda: {"pair": (1, 2), 3: float("inf")}))  # type: ignore[dict-item]
    assert fresh == [{"pair": [1, 2], "3": float("inf")}] * 2


def test_times_are_kept(tmp_path: Path) -> None:
    ticks = count()
    for _ in range(2):
        with opened(tmp_path / "j", clock=lambda: float(next(ticks))) as journal:
            measure_all(journal)
    assert next(ticks) == 2 * len(KEYS)  # the second run took no time
    with opened(tmp_path / "j") as journal:
        assert (journal.resumed_s, journal.resumed) == (3.0, 3)


def test_another_header_begins_a_new_file_and_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        measure_all(journal)
    with opened(path, {**HEADER, "commit": "def", "model": "large"}) as journal:
        assert (journal.resumed, journal.outdated) == (0, ["commit", "model"])
        assert measure_all(journal) == list(KEYS)
    assert len((tmp_path / "j.old").read_text().splitlines()) == 1 + len(KEYS)


def test_afresh_forgets_and_a_finished_run_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        measure_all(journal)
    with opened(path, afresh=True) as journal:
        assert (journal.resumed, journal.outdated) == (0, [])
        assert measure_all(journal) == list(KEYS)
        journal.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"key": 1, "measured": {}, "seconds": 1}', '{"key": "a", "measured": 1, "seconds": 1}']
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j"
    cell = json.dumps({"key": "b", "measured": {}, "seconds": 1})
    path.write_text("\n".join([json.dumps(HEADER), cell, line, cell, ""]))
    with raises(
        DataError,
        snapshot(
            "Line 3 of the journal TMP/j is damaged. Delete that line to measure its cell again, or start again with"
            " --afresh to measure all."
        ),
    ):
        RunJournal(path, HEADER)
    with opened(path, afresh=True) as journal:
        assert measure_all(journal) == list(KEYS)


def test_one_writer_and_one_cell_a_key(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        with raises(
            ConflictError,
            snapshot("Another moa-bench writes TMP/j. Let it end, or stop it, and start again: nothing is lost."),
        ):
            RunJournal(path, HEADER)
        measure_all(journal)
        with raises(
            InternalError,
            snapshot(
                "The suite names two cells 'MoA, round 0'. This is a defect of moa: please report it with the log."
            ),
        ):
            journal.keep(KEYS[2], dict)


def test_a_failed_cell_is_measured_again(tmp_path: Path) -> None:
    def fail() -> JsonObject:
        raise KeyboardInterrupt

    with opened(tmp_path / "j") as journal, pytest.raises(KeyboardInterrupt):
        journal.keep(KEYS[0], fail)
    with opened(tmp_path / "j") as journal:
        assert measure_all(journal) == list(KEYS)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(
        ConfigError,
        snapshot("The journal TMP/file/j cannot be used: File exists. Make its folder one that you may write."),
    ):
        RunJournal(tmp_path / "file" / "j", HEADER)
