"""The registry of sessions: how many there may be, which have a stream, which wait for their client to come back.

Pure but for the token source and the clock that it is given. State: all slots by resume token. Invariants: at most
`limit` slots, `stream_limit` of them attached; a detached slot is dropped after its time, or earlier when its place is
needed. Who takes up most gives way first: the client that asks, where nobody has more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from moa_shared.errors import OverloadedError

from moa_server.engine.live_session import Slot

TOKEN_BYTES = 16  # cannot be guessed: who knows it can read on in another's conversation


class SessionRegistry:
    """All sessions of this server.

    Args:
        limit: the most sessions, detached ones included.
        stream_limit: the most sessions that have a stream.
        detached_seconds: how long a session waits for its client.
        make_slot: a new slot for a resume token.
        make_token: random bytes.
        clock: seconds, monotonic.
        on_closed: told of each session that has ended.
    """

    def __init__(
        self,
        limit: int,
        stream_limit: int,
        detached_seconds: float,
        make_slot: Callable[[bytes], Slot],
        make_token: Callable[[int], bytes],
        clock: Callable[[], float],
        on_closed: Callable[[Slot], None],
    ) -> None:
        self._limit = limit
        self._stream_limit = stream_limit
        self._detached_seconds = detached_seconds
        self._make_slot = make_slot
        self._make_token = make_token
        self._clock = clock
        self._on_closed = on_closed
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

    @property
    def attached(self) -> int:
        """How many have a stream."""
        return len(self._slots) - len(self._detached)

    def find(self, token: bytes) -> Slot | None:
        """The session to go on with, attached or not; None where it is unknown (expired, or another server's)."""
        return self._slots.get(token)

    def new(self) -> Slot:
        """A new session, which counts once it is attached."""
        return self._make_slot(self._make_token(TOKEN_BYTES))

    def attach(self, slot: Slot, client: str) -> None:
        """Gives a session, new or found, to a stream of `client`.

        Raises:
            OverloadedError: a limit is reached, and nobody who takes up as much can give way.
        """
        self.expire()
        if slot.token not in self._slots or slot.token in self._detached:
            self._make_stream_room(client)
        if slot.token not in self._slots:
            self._make_room(client)
        slot.client = client
        self._slots[slot.token] = slot
        self._detached.pop(slot.token, None)

    def _make_room(self, client: str) -> None:
        """Drops a detached session where the limit is reached."""
        if len(self._slots) < self._limit:
            return
        held = Counter(slot.client for slot in self._slots.values())
        waiting = [self._slots[token] for token in self._detached]
        if not waiting:
            raise OverloadedError(f"The server holds {self._limit} sessions already, which is its limit.")
        self.close(_first_of_the_most(waiting, held, client))

    def _make_stream_room(self, client: str) -> None:
        """Ends an idle stream where the limit is reached: one's own, or one of a client that has more of them."""
        attached = [slot for token, slot in self._slots.items() if token not in self._detached]
        if len(attached) < self._stream_limit:
            return
        held = Counter(slot.client for slot in attached)
        idle = [
            slot for slot in attached if slot.is_idle and (slot.client == client or held[slot.client] > held[client])
        ]
        if not idle:
            raise OverloadedError(f"The server has {self._stream_limit} streams already, which is its limit.")
        slot = _first_of_the_most(idle, held, client)
        if slot.listener is not None:
            slot.listener.on_displaced()
        self.detach(slot)

    def detach(self, slot: Slot) -> None:
        """The stream of a session broke: keeps it for a time, if there is something to keep."""
        slot.listener = slot.feed = None
        if slot.closed or slot.token not in self._slots:
            return
        if self._detached_seconds <= 0 or not slot.session.tokens:
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
        self._on_closed(slot)

    def expire(self) -> int:
        """Drops the sessions that have waited long enough; returns how many."""
        overdue = self._clock() - self._detached_seconds
        dropped = [token for token, since in self._detached.items() if since <= overdue]
        for token in dropped:
            self.close(self._slots[token])
        return len(dropped)


def _first_of_the_most(slots: list[Slot], held: Counter[str], client: str) -> Slot:
    """The first session of the client that holds the most; of `client` where that is one of them."""
    return max(slots, key=lambda slot: (held[slot.client], slot.client == client))
