"""The history's file: its tables, how older files become newer ones, transactions, and in words what SQLite refuses.

State: a connection to one SQLite file. Invariants: a migration never changes what it leaves once it was released, a new
one is appended, and `user_version` counts them; a file that is not ours, damaged, or of a newer version is never
written; killing the program at any moment leaves every completed transaction readable.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_shared.errors import DiskFullError, HistoryError, NotFoundError

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
    # The index for searches of older files: a search reads the texts themselves.
    ("DROP TRIGGER IF EXISTS forget_words", "DROP TABLE IF EXISTS words"),
)


FILE = "history.db"
BUSY_MS = 2000  # a transaction of another program takes less than one; a deletion, some tens
TRIES = 200  # of 10 ms: two programs that make the file at once; SQLite does not wait for this by itself
_ELSEWHERE = "Name another folder in XDG_DATA_HOME, or chat with --no-history."


def default_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("moa", appauthor=False) / "history"


class Database:
    """The history's file at `path`, made where absent; all calls raise HistoryError, or DiskFullError.

    `folder`: None: the default one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = (folder or default_folder()).expanduser().absolute()
        self.path = folder / FILE
        self._has_traces = False  # deleted text is left in the log
        _make_private(folder, self.path)
        with self.translated():
            self.connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_MS / 1e3)
            try:
                self._check()
                self._set_up()
            except BaseException:
                self.connection.close()
                raise

    def close(self) -> None:
        if self._has_traces:
            self._empty_log()
        self.connection.close()

    def rows(self, statement: str, *values: object) -> list[Any]:
        with self.translated():
            return self.connection.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self, *, erases: bool = False) -> Iterator[sqlite3.Connection]:
        """All of it, or nothing. `erases`: deleted text is to leave the log too."""
        with self.translated():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled it back already
                    self.connection.execute("ROLLBACK")
                raise
            if erases or self._has_traces:
                self._empty_log()

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise HistoryError(
                "The conversation was deleted from the history meanwhile: what is said from now on is not kept.",
                hint="",
            ) from None
        except sqlite3.Error as error:
            raise _in_words(self.path, error) from error

    def _empty_log(self) -> None:
        """Writes the log into the file, and empties it; where another program reads, after the next transaction."""
        self._has_traces = True
        with suppress(sqlite3.Error):
            self.connection.execute("PRAGMA busy_timeout = 0")
            self._has_traces = bool(self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            self.connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _check(self) -> None:
        """Refuses a file that another program, or a newer version, has made."""
        # First: what another moa makes meanwhile has all of it at once, so its name is read after its tables.
        has_tables = self.connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is not None
        application, version = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if version > len(MIGRATIONS) and application == APPLICATION:
            raise HistoryError(
                f"The history {self.path} is of a newer version of moa ({version}, this one knows {len(MIGRATIONS)}).",
                hint=f"Use that version. {_ELSEWHERE}",
            )
        is_new = (application, version) == (0, 0) and not has_tables
        if application != APPLICATION and not is_new:
            raise HistoryError(f"The file {self.path} is a database of another program.", hint=_ELSEWHERE)

    def _set_up(self) -> None:
        self._use_write_ahead_log()
        # A crash of the machine may lose the newest text, never the file; what is deleted is overwritten.
        for pragma in ("synchronous = NORMAL", "foreign_keys = ON", "secure_delete = ON"):
            self.connection.execute(f"PRAGMA {pragma}")
        if (version := self._version()) == len(MIGRATIONS):
            return
        with self.transaction(erases=version > 0) as connection:  # an older file's texts are in what is dropped
            # another program may have been first
            for statement in (each for migration in MIGRATIONS[self._version() :] for each in migration):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _version(self) -> int:
        return int(self.connection.execute("PRAGMA user_version").fetchone()[0])

    def _use_write_ahead_log(self) -> None:
        """Two programs that make the file at once: one of them has to try again."""
        for attempt in range(TRIES):
            try:
                if self.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                    return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == TRIES - 1:
                    raise
            time.sleep(0.01)


def _make_private(folder: Path, path: Path) -> None:
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    except OSError as error:
        raise HistoryError(
            f"The history {path} cannot be written: {error.strerror or error}.", hint=_ELSEWHERE
        ) from error


def _in_words(path: Path, error: sqlite3.Error) -> HistoryError | DiskFullError:
    code = getattr(error, "sqlite_errorcode", 0)
    kind, hint = code & 0xFF, "Check that folder, or chat with --no-history."
    if kind == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE:
        words = f"The disk of the history {path} is full: what is said from now on is not kept."
        return DiskFullError(words, hint="Free some space.")
    words = f"The history {path} cannot be used: {error}."
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        words = f"The history {path} is damaged, or no history; it was left as it is."
        hint = "Move it elsewhere, or restore a copy."
    elif kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        words = f"The history {path} is in use by another program, for {BUSY_MS / 1e3:g} s already."
        hint = "Try again."
    return HistoryError(words, hint=hint)


MOST_SECONDS = 30 * 86_400.0  # since one was last continued; OpenAI's are kept as long
MOST = 10_000
MOST_BYTES = 256 << 20
_CHAIN = """WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM responses WHERE id = ?
    UNION ALL SELECT before.id, before.previous, depth + 1 FROM responses AS before
        JOIN chain ON before.id = chain.previous
)"""
# Of those last used at the same time the newest go first, which continue the others; what was used now stays.
_LET_GO = """DELETE FROM responses WHERE used < :now AND (used < :now - :seconds OR (
    (SELECT count(*) > :most OR total(size) > :most_bytes FROM responses) AND rowid IN (SELECT rowid FROM (
        SELECT rowid, row_number() OVER newest AS number, sum(size) OVER newest AS bytes FROM responses
            WINDOW newest AS (ORDER BY used DESC, rowid)
    ) WHERE number > :most OR bytes > :most_bytes)))"""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    identifier: str
    previous: str | None  # the one that it continues
    created: float  # in seconds since 1970
    input: str  # the items that were asked with it, as JSON
    body: str  # the response, as JSON


class KeptResponses:
    """The kept responses of one history. `most`, `most_bytes`: bounds of number and size."""

    def __init__(
        self, database: Database, clock: Callable[[], float], *, most: int = MOST, most_bytes: int = MOST_BYTES
    ) -> None:
        self._database = database
        self._clock = clock
        self._bounds = {"most": most, "most_bytes": most_bytes}

    def keep(self, response: KeptResponse) -> None:
        """Keeps a response, and lets go of those that were not continued for the longest time."""
        now = self._clock()
        size = len(response.input.encode()) + len(response.body.encode())
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO responses (id, previous, created, used, size, input, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (response.identifier, response.previous, response.created, now, size, response.input, response.body),
            )
            connection.execute(
                f"{_CHAIN} UPDATE responses SET used = ? WHERE id IN (SELECT id FROM chain)", (response.identifier, now)
            )
            connection.execute(_LET_GO, {"now": now, "seconds": MOST_SECONDS, **self._bounds})

    def load(self, identifier: str) -> KeptResponse:
        rows = self._database.rows("SELECT id, previous, created, input, body FROM responses WHERE id = ?", identifier)
        if not rows:
            raise _not_found(identifier)
        return KeptResponse(*rows[0])

    def chain(self, identifier: str) -> Sequence[KeptResponse]:
        """A response and all those that it continues, the first one first."""
        rows = self._database.rows(
            f"{_CHAIN} SELECT responses.id, responses.previous, created, input, body FROM chain "
            "JOIN responses ON responses.id = chain.id ORDER BY depth DESC",
            identifier,
        )
        chain = [KeptResponse(*row) for row in rows]
        missing = chain[0].previous if chain else identifier
        if missing is not None:
            raise _not_found(missing)
        return chain

    def delete(self, identifier: str) -> None:
        """Deletes a response for good; those that continue it can no longer be continued."""
        with self._database.transaction(erases=True) as connection:
            if not connection.execute("DELETE FROM responses WHERE id = ?", (identifier,)).rowcount:
                raise _not_found(identifier)

    def delete_all(self) -> int:
        """Deletes all of them for good; how many there were."""
        with self._database.transaction(erases=True) as connection:
            return connection.execute("DELETE FROM responses").rowcount

    def count(self) -> int:
        return int(self._database.rows("SELECT count(*) FROM responses")[0][0])


def _not_found(identifier: str) -> NotFoundError:
    return NotFoundError(
        f"No response {identifier[:80]!r} is kept here.",
        hint="It was asked for with store: false, deleted, or not continued for too long: send all items as input.",
    )
