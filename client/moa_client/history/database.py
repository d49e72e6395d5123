"""The history's file: its tables, how older files become newer ones, and in words what SQLite refuses.

Invariants: a migration never changes once it was released, a new one is appended, and `user_version` counts them; a
file that is not ours, damaged, or of a newer version is never written; killing the program at any moment leaves every
completed transaction readable.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from moa_shared.errors import DiskFullError, HistoryError

APPLICATION = 0x6D6F6168  # "moah": marks a file as ours

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            model TEXT NOT NULL,
            target BLOB NOT NULL,
            tokenizer BLOB NOT NULL,
            execution TEXT NOT NULL,
            server TEXT NOT NULL,
            system TEXT
        )""",
        "CREATE INDEX newest ON conversations (updated)",
        """CREATE TABLE answers (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
            position INTEGER NOT NULL,
            question TEXT NOT NULL,
            options TEXT NOT NULL,
            standing TEXT NOT NULL,
            finish TEXT NOT NULL DEFAULT '',
            outcome TEXT NOT NULL DEFAULT '',
            decided_from INTEGER NOT NULL DEFAULT 0,
            stopped_at INTEGER,
            asked REAL NOT NULL,
            ended REAL,
            figures TEXT NOT NULL DEFAULT '{}',
            UNIQUE (conversation, position)
        )""",
        "CREATE INDEX open_answers ON answers (standing) WHERE standing IN ('running', 'unverified')",
        # Committed text comes in pieces: appending one must not cost more the longer the answer is.
        """CREATE TABLE pieces (
            answer INTEGER NOT NULL REFERENCES answers ON DELETE CASCADE,
            number INTEGER NOT NULL,
            tokens BLOB NOT NULL,
            provenance BLOB NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (answer, number)
        ) WITHOUT ROWID""",
        """CREATE TABLE provisional (
            answer INTEGER PRIMARY KEY REFERENCES answers ON DELETE CASCADE,
            tokens BLOB NOT NULL,
            text TEXT NOT NULL,
            shown INTEGER NOT NULL,
            kept INTEGER NOT NULL,
            is_corrected INTEGER NOT NULL
        )""",
        "CREATE VIRTUAL TABLE words USING fts5 (question, answer, tokenize = 'unicode61 remove_diacritics 2')",
        "CREATE TRIGGER forget_words AFTER DELETE ON answers BEGIN DELETE FROM words WHERE rowid = old.key; END",
    ),
    (
        # Of programs (docs/api.md), as JSON. What continues another one names it; that one may be deleted first.
        """CREATE TABLE responses (
            id TEXT PRIMARY KEY,
            previous TEXT,
            created REAL NOT NULL,
            used REAL NOT NULL,
            size INTEGER NOT NULL,
            input TEXT NOT NULL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX responses_by_use ON responses (used, size)",
    ),
    (
        # Of answers in whose place others were asked for: what was shown, by the number of answers before them.
        """CREATE TABLE versions (
            conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
            place INTEGER NOT NULL,
            number INTEGER NOT NULL,
            question TEXT NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (conversation, place, number)
        ) WITHOUT ROWID""",
    ),
)


FILE = "history.db"
BUSY_MS = 2000  # a transaction of another program takes less than one; a search, or a deletion, some tens
TRIES = 200  # of 10 ms: two programs that make the file at once; SQLite does not wait for this by itself
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


def default_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("moa", appauthor=False) / "history"


def open_database(folder: Path | None = None) -> tuple[Path, sqlite3.Connection]:
    """Opens the history, and makes it where absent; its path and a connection in autocommit mode.

    `folder`: None: the default one.
    """
    folder = (folder or default_folder()).expanduser().absolute()
    path = folder / FILE
    if not _has("ENABLE_FTS5"):
        raise HistoryError(
            "This Python's SQLite lacks full-text search (ENABLE_FTS5), which the history needs.",
            hint="Use a Python with it, or chat with --no-history.",
        )
    _make_private(folder, path)
    with translated(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1e3)
        try:
            _check(path, connection)
            _set_up(path, connection)
        except BaseException:
            connection.close()
            raise
    return path, connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise HistoryError(
            "The conversation was deleted from the history meanwhile: what is said from now on is not kept.", hint=""
        ) from None
    except sqlite3.Error as error:
        raise _in_words(path, error) from error


@contextmanager
def transaction(path: Path, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with translated(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled it back already
                connection.execute("ROLLBACK")
            raise


def _make_private(folder: Path, path: Path) -> None:
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    except OSError as error:
        raise HistoryError(
            f"The history {path} cannot be written: {error.strerror or error}.",
            hint="Name another folder with --history-dir, or chat with --no-history.",
        ) from error


def _has(option: str) -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        return bool(connection.execute("SELECT sqlite_compileoption_used(?)", (option,)).fetchone()[0])


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Refuses a file that another program, or a newer version, has made."""
    # First: what another moa makes meanwhile has all of it at once, so its name is read after its tables.
    has_tables = connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is not None
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if version > len(MIGRATIONS) and application == APPLICATION:
        raise HistoryError(
            f"The history {path} is of a newer version of moa ({version}, this one knows {len(MIGRATIONS)}).",
            hint="Use that version, name another folder with --history-dir, or chat with --no-history.",
        )
    is_new = (application, version) == (0, 0) and not has_tables
    if application != APPLICATION and not is_new:
        raise HistoryError(
            f"The file {path} is a database of another program.", hint="Name another folder with --history-dir."
        )


def _set_up(path: Path, connection: sqlite3.Connection) -> None:
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine may lose the newest text, never the file
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    if connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    with transaction(path, connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]  # another program may have been first
        for statement in (each for migration in MIGRATIONS[version:] for each in migration):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Two programs that make the file at once: one of them has to try again."""
    for attempt in range(TRIES):
        try:
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == TRIES - 1:
                raise
        time.sleep(0.01)


def _in_words(path: Path, error: sqlite3.Error) -> HistoryError | DiskFullError:
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL or code in _FULL:
        return DiskFullError(
            f"The disk of the history {path} is full: what is said from now on is not kept.", hint="Free some space."
        )
    if code & 0xFF in _DAMAGED:
        return HistoryError(
            f"The history {path} is damaged, or no history; it was left as it is.",
            hint="Move it elsewhere, or restore a copy.",
        )
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return HistoryError(
            f"The history {path} is in use by another program, for {BUSY_MS / 1e3:g} s already.", hint="Try again."
        )
    return HistoryError(
        f"The history {path} cannot be used: {error}.", hint="Check that folder, or chat with --no-history."
    )
