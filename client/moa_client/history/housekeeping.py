"""Who writes a conversation, one program at a time, and what is left of deleted text until it is removed.

State: a file, of which each conversation that this program writes has one byte locked; and a thread while there is text
to remove, in the index for searches until it is merged, in the log until it is emptied. Invariants: a lock ends with
its program, however that ends; removing holds up neither the event loop nor, for more than one step, another writer.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from moa_shared.errors import ConflictError, HistoryError

STEP_PAGES = 16  # of the index that are merged in one transaction: some tens of ms
RETRY_SECONDS = (0.05, 5.0)  # the first and the longest wait for a program that reads or writes
CLOSE_SECONDS = 2.0  # that a program which ends waits; closing the last connection empties the log too
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
log = logging.getLogger(__name__)


class Eraser:
    """Removes deleted text on a thread of its own, with a connection of its own."""

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


FILE = "writers.lock"


class Writers:
    """The conversations that this program writes. One of these a program: closing the file lets go of all."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: int | None = None
        self._held: set[str] = set()

    def hold(self, conversation: str) -> None:
        if conversation in self._held:
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(conversation))
        except (BlockingIOError, PermissionError) as error:
            if self._file is None:
                raise _unusable(self._path, error) from error
            raise ConflictError(
                f"The conversation {conversation} is open in another chat.",
                hint="Continue there, or close it there first.",
            ) from None
        except OSError as error:
            raise _unusable(self._path, error) from error
        self._held.add(conversation)

    def release(self, conversation: str) -> None:
        if self._file is not None and conversation in self._held:
            self._held.remove(conversation)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(conversation))

    def close(self) -> None:
        """Lets other programs write all conversations."""
        self._held.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _place(conversation: str) -> int:
    """The byte that stands for a conversation; the file is empty, and need not have it."""
    return int.from_bytes(base64.b32decode(conversation.upper()))


def _unusable(path: Path, error: OSError) -> HistoryError:
    return HistoryError(f"The history's file {path} cannot be used: {error.strerror or error}.")
