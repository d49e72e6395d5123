"""Responses of the endpoint that are kept, so that a program can continue them: what was asked, and what came of it.

Invariants: each call is one transaction; a response is kept at least as long as one that continues it, unless it is
deleted by name; what is kept stays within bounds of number, size and age, but for the newest and those before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_shared.errors import NotFoundError

from moa_client.history.database import Database

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
    """A response that is kept."""

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
