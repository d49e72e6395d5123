"""The registry of sessions: how many there may be, which are attached, which wait for their client to come back.

Pure but for the token source and the clock that it is given. State: all slots by resume token. Invariant: at most
`limit` slots; a detached slot is dropped after its time, or earlier when its place is needed (oldest first).
"""

from __future__ import annotations

from collections.abc import Callable

from moa_shared.errors import OverloadedError

from moa_server.slot import Slot

TOKEN_BYTES = 16  # cannot be guessed: who knows it can read on in another's conversation


class SessionRegistry:
    """All sessions of this server.

    Args:
        limit: the most sessions, detached ones included.
        detached_seconds: how long a session waits for its client.
        make_slot: a new slot for a resume token.
        make_token: random bytes.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        limit: int,
        detached_seconds: float,
        make_slot: Callable[[bytes], Slot],
        make_token: Callable[[int], bytes],
        clock: Callable[[], float],
    ) -> None:
        self._limit = limit
        self._detached_seconds = detached_seconds
        self._make_slot = make_slot
        self._make_token = make_token
        self._clock = clock
        self._slots: dict[bytes, Slot] = {}
        self._detached: dict[bytes, float] = {}  # when; in that order

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All sessions, oldest first."""
        return tuple(self._slots.values())

    @property
    def detached(self) -> int:
        """How many sessions wait for their client."""
        return len(self._detached)

    def find(self, token: bytes) -> Slot | None:
        """The session to go on with, attached or not; None where it is unknown (expired, or another server's)."""
        return self._slots.get(token)

    def attach(self, slot: Slot) -> None:
        """A stream has taken the session over."""
        self._detached.pop(slot.token, None)

    def admit(self) -> Slot:
        """A new session.

        Raises:
            OverloadedError: the limit is reached, and no session is detached.
        """
        self.expire()
        if len(self._slots) >= self._limit:
            oldest = next(iter(self._detached), None)
            if oldest is None:
                raise OverloadedError(f"The server holds {self._limit} sessions already, which is its limit.")
            self.close(self._slots[oldest])
        slot = self._make_slot(self._make_token(TOKEN_BYTES))
        self._slots[slot.token] = slot
        return slot

    def detach(self, slot: Slot) -> None:
        """The stream of a session broke: keeps it for a time."""
        slot.listener = slot.feed = None
        if slot.closed or slot.token not in self._slots:
            return
        if self._detached_seconds <= 0:
            self.close(slot)
        else:
            self._detached.pop(slot.token, None)
            self._detached[slot.token] = self._clock()

    def close(self, slot: Slot) -> None:
        """Frees a session."""
        slot.closed = True
        slot.listener = slot.feed = None
        self._slots.pop(slot.token, None)
        self._detached.pop(slot.token, None)

    def expire(self) -> int:
        """Drops the sessions that have waited long enough; returns how many."""
        overdue = self._clock() - self._detached_seconds
        dropped = [token for token, since in self._detached.items() if since <= overdue]
        for token in dropped:
            self.close(self._slots[token])
        return len(dropped)
