"""Responses that are kept: continued, bounded, and deleted for good."""

from __future__ import annotations

import random
import sqlite3
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.history.records import AnswerStatus
from moa_client.history.responses import KeptResponse, KeptResponses
from moa_client.history.store import HistoryStore
from moa_shared.errors import NotFoundError

from tests.support.messages import raises
from tests.support.programs import environment, started
from tests.unit.moa_client.history.killed_writer import Writer
from tests.unit.moa_client.history.ticking_clock import TickingClock


def response(identifier: str, previous: str | None = None, text: str = "x") -> KeptResponse:
    return KeptResponse(identifier, previous, 1000.0, "[]", text)


def bounded(store: HistoryStore, clock: TickingClock, **bounds: int) -> KeptResponses:
    return KeptResponses(store.path, store._connection, store._eraser, clock, **bounds)


def test_a_chain_is_read_from_its_beginning(store: HistoryStore) -> None:
    kept = store.responses
    for identifier, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        kept.keep(response(identifier, previous))
    assert [each.identifier for each in kept.chain("c")] == ["a", "b", "c"]
    assert kept.load("b") == response("b", "a")


def test_what_continues_a_deleted_one_cannot_be_continued(store: HistoryStore) -> None:
    kept = store.responses
    kept.keep(response("a", text="SECRET"))
    kept.keep(response("b", "a"))
    kept.delete("a")
    assert kept.load("b").previous == "a"
    for call in (kept.chain, kept.load, kept.delete):
        with raises(
            NotFoundError,
            snapshot(
                "No response 'a' is kept here. It was asked for with store: false, deleted, or not continued for too long: send all items as input."
            ),
        ):
            call("a" if call != kept.chain else "b")
    assert store.wait_erased(10)
    assert not any(b"SECRET" in path.read_bytes() for path in store.path.parent.iterdir())
    assert (kept.delete_all(), kept.count()) == (1, 0)


def test_those_not_continued_for_the_longest_time_make_room_from_their_end_on(store: HistoryStore) -> None:
    kept = bounded(store, TickingClock(), most=4)
    for identifier, previous in (("a", None), ("b", "a"), ("x", None), ("c", "a")):
        kept.keep(response(identifier, previous))
    kept.keep(response("d", "c"))
    kept.keep(response("e", "d"))
    assert [each.identifier for each in kept.chain("e")] == ["a", "c", "d", "e"]
    for gone in ("b", "x"):
        with pytest.raises(NotFoundError):
            kept.load(gone)
    kept.keep(response("y"))  # the chain loses its end, not its beginning
    assert [each.identifier for each in kept.chain("d")] == ["a", "c", "d"]


def test_they_are_bounded_by_bytes_but_for_the_newest(store: HistoryStore) -> None:
    kept = bounded(store, TickingClock(), most_bytes=100)
    kept.keep(response("a", text="x" * 60))
    kept.keep(response("b", text="x" * 60))
    assert kept.count() == 1
    kept.keep(response("c", text="x" * 200))
    kept.keep(response("d", "c", text="x" * 200))
    assert [each.identifier for each in kept.chain("d")] == ["c", "d"]


ENVIRONMENT = environment("proto", "shared", "client", ".")
WRITER = [sys.executable, "-m", "tests.unit.moa_client.history.killed_writer"]


def seen(store: HistoryStore, number: int) -> list[tuple[str, str]]:
    """What is kept of the conversation of this number: of each answer, committed and provisional text."""
    for summary in store.list():
        stored = store.load(summary.identifier)
        if stored.title == str(number):
            assert all(not answer.provisional for answer in stored.answers if answer.standing is AnswerStatus.DECIDED)
            return [(answer.text, answer.provisional) for answer in stored.answers]
    return []


def expected(folder: Path, number: int, steps: int) -> list[tuple[str, str]]:
    """What a writer shows after so many steps."""
    store = HistoryStore(folder)
    writer = Writer(store, number)
    for _ in islice(writer.steps(), steps):
        pass
    store.close()
    return writer.shown


def test_nothing_that_was_shown_is_lost(tmp_path: Path) -> None:
    chance = random.Random(3)
    folder = tmp_path / "kept"
    for number in range(8):
        with started([*WRITER, str(folder), str(number)], ENVIRONMENT) as program:
            told = "".join(program.out.readline() for _ in range(chance.randrange(1, 400)))
            program.process.kill()
            told += program.out.read()
        shown = int(told.split("\n")[-2])  # what follows is no whole line
        store = HistoryStore(folder)
        kept = seen(store, number)
        store.close()
        possible = [expected(tmp_path / "again", number, shown + more) for more in (0, 1)]
        assert kept in possible
    with closing(sqlite3.connect(folder / "history.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
