"""The registry of sessions: how many there may be, which have a stream, which wait for their client to come back.

Pure but for the token source and the clock that it is given. State: all live sessions by resume token. Invariants: at
most `limit` of them, `stream_limit` attached; a detached one is dropped after its time, or earlier when its place is
needed. The client that takes up most gives way first: the one that asks, if nobody has more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from moa_shared.errors import OverloadedError

from moa_server.access.caller import Caller
from moa_server.access.holdings import KeyUsage, sum_holdings
from moa_server.engine.live.attachment import Attachment
from moa_server.engine.live.live_session import LiveSession

TOKEN_BYTES = 16  # cannot be guessed: whoever knows it can read another's conversation


class SessionRegistry:
    """All sessions of this server.

    Args:
        limit: the most sessions, detached ones included.
        stream_limit: the most sessions that have a stream.
        detached_seconds: how long a session waits for its client.
        make_live_session: a new one for a resume token.
        make_token: random bytes.
        clock: seconds, monotonic.
        on_closed: called with each session that has ended.
        elsewhere: sessions with a running answer that an owner has at other replicas of a fleet.
    """

    def __init__(
        self,
        limit: int,
        stream_limit: int,
        detached_seconds: float,
        make_live_session: Callable[[bytes], LiveSession],
        make_token: Callable[[int], bytes],
        clock: Callable[[], float],
        on_closed: Callable[[LiveSession], None],
        elsewhere: Callable[[str], int] = lambda owner: 0,
    ) -> None:
        self._limit = limit
        self._stream_limit = stream_limit
        self._detached_seconds = detached_seconds
        self._make_live_session = make_live_session
        self._make_token = make_token
        self._clock = clock
        self._on_closed = on_closed
        self._elsewhere = elsewhere
        self._live_sessions: dict[bytes, LiveSession] = {}
        self._detached: dict[bytes, float] = {}  # when; in that order

    def __len__(self) -> int:
        return len(self._live_sessions)

    @property
    def live_sessions(self) -> tuple[LiveSession, ...]:
        """All sessions, oldest first."""
        return tuple(self._live_sessions.values())

    @property
    def detached(self) -> int:
        """How many sessions are waiting for their client."""
        return len(self._detached)

    def find(self, token: bytes, caller: Caller) -> LiveSession | None:
        """The session to continue, attached or not; None if unknown: expired, another server's, or another owner's.

        An address owns nothing: a client that has moved finds its session again.
        """
        live = self._live_sessions.get(token)
        if live is None or live.caller.owner == caller.owner:
            return live
        return None if live.caller.is_proven or caller.is_proven else live

    def new(self) -> LiveSession:
        """A new session, which counts once it is attached."""
        return self._make_live_session(self._make_token(TOKEN_BYTES))

    def attach(self, live: LiveSession, caller: Caller, stream: Attachment) -> None:
        """Gives a session, new or found, to a stream of `caller`.

        Raises:
            OverloadedError: a limit is reached, and nobody who takes up as much can give way.
        """
        self.expire()
        if live.token not in self._live_sessions or live.token in self._detached:
            self._make_stream_room(caller.owner)
        if live.token not in self._live_sessions:
            self._make_own_room(caller)
            self._make_room(caller.owner)
        live.attach(caller, stream)
        self._live_sessions[live.token] = live
        self._detached.pop(live.token, None)

    def _make_own_room(self, caller: Caller) -> None:
        """Drops idle sessions of the caller's own if it has as many as it may, first those that are detached."""
        limit = caller.limits.sessions
        if not limit:
            return
        own = [live for live in self._live_sessions.values() if live.caller.owner == caller.owner]
        excess = len(own) + 1 + self._elsewhere(caller.owner) - limit
        if excess > sum(live.is_idle for live in own):
            raise OverloadedError(f"The key {caller.key} may have {limit} sessions at once, and all have answers.")
        self.give_up(caller.owner, excess)

    def holdings(self) -> dict[str, KeyUsage]:
        """How many sessions each owner has that may have only so many."""
        return sum_holdings(
            (live.caller.owner, live.caller.limits.sessions, 1, live.is_idle) for live in self._live_sessions.values()
        )

    def give_up(self, owner: str, sessions: int) -> None:
        """Drops so many sessions of an owner, or as many as have no answer: first those that wait for their client."""
        idle = [live for live in self._live_sessions.values() if live.caller.owner == owner and live.is_idle]
        for live in sorted(idle, key=lambda live: live.token not in self._detached)[: max(0, sessions)]:
            if live.stream.listener is not None:
                live.stream.listener.on_displaced()
            self.close(live)

    def _make_room(self, owner: str) -> None:
        """Drops a detached session if the limit is reached."""
        if len(self._live_sessions) < self._limit:
            return
        held = Counter(live.caller.owner for live in self._live_sessions.values())
        waiting = [self._live_sessions[token] for token in self._detached]
        if not waiting:
            raise OverloadedError(f"The server holds {self._limit} sessions already, which is its limit.")
        self.close(_first_of_the_most(waiting, held, owner))

    def _make_stream_room(self, owner: str) -> None:
        """Ends an idle stream if the limit is reached: the client's own, or one of a client that has more of them."""
        attached = [live for token, live in self._live_sessions.items() if token not in self._detached]
        if len(attached) < self._stream_limit:
            return
        held = Counter(live.caller.owner for live in attached)
        idle = [
            live
            for live in attached
            if live.is_idle and (live.caller.owner == owner or held[live.caller.owner] > held[owner])
        ]
        if not idle:
            raise OverloadedError(f"The server has {self._stream_limit} streams already, which is its limit.")
        live = _first_of_the_most(idle, held, owner)
        if live.stream.listener is not None:
            live.stream.listener.on_displaced()
        self.detach(live)

    def detach(self, live: LiveSession) -> None:
        """Keeps a session whose stream broke for a time, if there is something to keep."""
        live.detach()
        if live.closed or live.token not in self._live_sessions:
            return
        if self._detached_seconds <= 0 or not live.session.tokens:
            self.close(live)
        else:
            self._detached.pop(live.token, None)
            self._detached[live.token] = self._clock()

    def close(self, live: LiveSession) -> None:
        """Frees a session."""
        live.close()
        self._live_sessions.pop(live.token, None)
        self._detached.pop(live.token, None)
        self._on_closed(live)

    def expire(self) -> int:
        """Drops the sessions that have waited long enough; returns how many."""
        overdue = self._clock() - self._detached_seconds
        dropped = [token for token, since in self._detached.items() if since <= overdue]
        for token in dropped:
            self.close(self._live_sessions[token])
        return len(dropped)


def _first_of_the_most(live_sessions: list[LiveSession], held: Counter[str], owner: str) -> LiveSession:
    """The first session of the owner that holds the most; of `owner` if it ties for the most."""
    return max(live_sessions, key=lambda live: (held[live.caller.owner], live.caller.owner == owner))
