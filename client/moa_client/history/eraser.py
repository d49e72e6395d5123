"""Removes what is left of deleted text: in the index for searches until it is merged, in the log until it is emptied.

State: a thread while there is something to remove. Invariant: it holds up neither the event loop nor, for more than
one step of the merge, another writer; another program that reads the log delays it and does not end it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

STEP_PAGES = 16  # of the index that are merged in one transaction: some tens of ms
RETRY_SECONDS = (0.05, 5.0)  # the first and the longest wait for a program that reads or writes
CLOSE_SECONDS = 2.0  # that a program which ends waits; closing the last connection empties the log too
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
log = logging.getLogger(__name__)


class Eraser:
    """Removes deleted text on a thread of its own, with a connection of its own.

    Args:
        path: of the history's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._is_running = False
        self._is_wanted = False  # again, after the run under way
        self._ending = threading.Event()

    def begin(self) -> None:
        """Called after text was deleted; returns at once."""
        with self._changed:
            self._is_wanted = True
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="history-eraser", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Waits until nothing is left to remove; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_running, seconds)

    def close(self) -> None:
        """Ends it, after a last attempt."""
        self._ending.set()
        self.wait(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._is_next():
            try:
                self._erase()
            except sqlite3.Error as error:
                log.warning("deleted text may be left in the history %s: %s", self._path, error)

    def _is_next(self) -> bool:
        with self._changed:
            self._is_running, self._is_wanted = self._is_wanted, False
            self._changed.notify_all()
            return self._is_running

    def _erase(self) -> None:
        first, longest = RETRY_SECONDS
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            while not (_merge_index(connection) and _empty_log(connection)):
                if self._ending.wait(first):
                    return
                first = min(2 * first, longest)


def _merge_index(connection: sqlite3.Connection) -> bool:
    """Makes one segment of the index, without the words of deleted texts; False: another program writes."""
    pages = -STEP_PAGES  # negative: begin to merge all segments into one
    while True:
        before = connection.total_changes
        try:
            connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in _BUSY:
                return False
            raise
        if pages > 0 and connection.total_changes - before < 2:  # SQLite's sign that nothing was left to merge
            return True
        pages = STEP_PAGES


def _empty_log(connection: sqlite3.Connection) -> bool:
    """Writes the log into the file, and empties it; False: another program reads or writes."""
    connection.execute("PRAGMA busy_timeout = 0")  # waiting here would hold up those who write
    is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    connection.execute("PRAGMA busy_timeout = 5000")
    return not is_busy
