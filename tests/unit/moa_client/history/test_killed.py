"""A program that is killed at any moment has kept all that it had shown, and nothing that it never wrote."""

from __future__ import annotations

import random
import sqlite3
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

from moa_client.history.records import AnswerStatus
from moa_client.history.store import HistoryStore

from tests.support.programs import environment, started
from tests.unit.moa_client.history.killed_writer import Writer

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
