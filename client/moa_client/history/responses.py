"""Responses of the endpoint that are kept, so that a program can continue them: what was asked, and what came of it.

Invariants: each call is one transaction; a response is kept at least as long as one that continues it, unless it is
deleted by name; what is kept stays within bounds of number, size and age, but for the newest and those before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import NotFoundError

from moa_client.history.database import transaction, translated
from moa_client.history.housekeeping import Eraser

MOST_DAYS = 30  # since one was last continued; OpenAI's are kept as long
MOST = 10_000
MOST_BYTES = 256 << 20
_DAY = 86_400.0
_CHAIN = """WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM responses WHERE id = ?
    UNION ALL SELECT before.id, before.previous, depth + 1 FROM responses AS before
        JOIN chain ON before.id = chain.previous
)"""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response that is kept.

    Args:
        previous: the one that it continues; None: none.
        created: in seconds since 1970.
        input: the items that were asked with it, as JSON; `body`: the response, as JSON.
    """

    identifier: str
    previous: str | None
    created: float
    input: str
    body: str


class KeptResponses:
    """The kept responses of one history. All calls may raise HistoryError, those that write DiskFullError.

    Args:
        path: of the history's file; `connection`: to it.
        eraser: removes what is left of deleted text.
        clock: seconds since 1970.
        most, most_bytes: bounds of number and size.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        eraser: Eraser,
        clock: Callable[[], float],
        *,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._path = path
        self._connection = connection
        self._eraser = eraser
        self._clock = clock
        self._most = most
        self._most_bytes = most_bytes

    def keep(self, response: KeptResponse) -> None:
        """Keeps a response, and lets go of those that were not continued for the longest time."""
        now = self._clock()
        size = len(response.input.encode()) + len(response.body.encode())
        with transaction(self._path, self._connection) as connection:
            connection.execute(
                "INSERT INTO responses (id, previous, created, used, size, input, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (response.identifier, response.previous, response.created, now, size, response.input, response.body),
            )
            connection.execute(
                f"{_CHAIN} UPDATE responses SET used = ? WHERE id IN (SELECT id FROM chain)", (response.identifier, now)
            )
            has_let_go = self._let_go(now)
        if has_let_go:
            self._eraser.begin()

    def load(self, identifier: str) -> KeptResponse:
        with translated(self._path):
            row = self._connection.execute(
                "SELECT id, previous, created, input, body FROM responses WHERE id = ?", (identifier,)
            ).fetchone()
        if row is None:
            raise _not_found(identifier)
        return KeptResponse(*row)

    def chain(self, identifier: str) -> Sequence[KeptResponse]:
        """A response and all those that it continues, the first one first."""
        with translated(self._path):
            found = self._connection.execute(
                f"{_CHAIN} SELECT responses.id, responses.previous, created, input, body FROM chain "
                "JOIN responses ON responses.id = chain.id ORDER BY depth DESC",
                (identifier,),
            ).fetchall()
        chain = [KeptResponse(*row) for row in found]
        missing = identifier if not chain else chain[0].previous
        if missing is not None:
            raise _not_found(missing)
        return chain

    def delete(self, identifier: str) -> None:
        """Deletes a response for good; those that continue it can no longer be continued."""
        with transaction(self._path, self._connection) as connection:
            if not connection.execute("DELETE FROM responses WHERE id = ?", (identifier,)).rowcount:
                raise _not_found(identifier)
        self._eraser.begin()

    def delete_all(self) -> int:
        """Deletes all of them for good; how many there were."""
        with transaction(self._path, self._connection) as connection:
            deleted = connection.execute("DELETE FROM responses").rowcount
        self._eraser.begin()
        return deleted

    def count(self) -> int:
        with translated(self._path):
            return int(self._connection.execute("SELECT count(*) FROM responses").fetchone()[0])

    def _let_go(self, now: float) -> bool:
        """Deletes what is too old, or too much; whether there was any. What was used `now` stays."""
        aged = self._connection.execute("DELETE FROM responses WHERE used < ?", (now - MOST_DAYS * _DAY,)).rowcount
        number, size = self._connection.execute("SELECT count(*), total(size) FROM responses").fetchone()
        # of those last used at the same time the newest first, which continues the others
        oldest = "SELECT rowid, size FROM responses WHERE used < ? ORDER BY used, rowid DESC"
        victims: list[tuple[int]] = []
        if number > self._most or size > self._most_bytes:
            for row, each in self._connection.execute(oldest, (now,)):
                if number - len(victims) <= self._most and size <= self._most_bytes:
                    break
                victims.append((row,))
                size -= each
            self._connection.executemany("DELETE FROM responses WHERE rowid = ?", victims)
        return bool(aged or victims)


def _not_found(identifier: str) -> NotFoundError:
    return NotFoundError(
        f"No response {identifier[:80]!r} is kept here.",
        hint="It was asked for with store: false, deleted, or not continued for too long: send all items as input.",
    )
