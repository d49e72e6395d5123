"""The registry of sessions: how many there may be, which have a stream, which wait for their client to come back.

Pure but for the token source and the clock that it is given. State: all live sessions by resume token. Invariants: at
most `limit` of them, `stream_limit` attached; a detached one is dropped after its time, or earlier when its place is
needed. The client that takes up most gives way first: the one that asks, if none has more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from moa_shared.errors import OverloadedError

from moa_server.access.caller import Caller
from moa_server.access.limits import KeyUsage, sum_holdings
from moa_server.drafting.session_drafter import OwnDrafter
from moa_server.engine.live_session import Attachment, LiveSession
from moa_server.engine.stepper import Stepper
from moa_server.memory.row_store import KeptPlane, most_nbytes
from moa_server.verifier import KVCache


class SessionSize:
    """The size of conversations with this target and these drafters.

    Args:
        draft_nodes: the most of one verification, whose rows come on top of the text's.
    """

    def __init__(self, stepper: Stepper, draft_nodes: int) -> None:
        self._stepper = stepper
        self._draft_nodes = draft_nodes

    def most_nbytes(
        self, cache: KVCache, widths: Mapping[KeptPlane, int], tokens: int, drafter: OwnDrafter | None
    ) -> int:
        """The most bytes that a conversation of so many tokens takes, with a draft below the last.

        Args:
            drafter: what the server drafts with; None: it does not.
        """
        rows = tokens + self._draft_nodes
        nbytes = cache.most_nbytes(rows) + sum(most_nbytes(width, rows) for width in widths.values())
        return nbytes + (drafter.most_nbytes(rows) if drafter is not None else 0)

    def largest(self, tokens: int) -> int:
        """The most bytes that a conversation of so many tokens takes, with the memory rows that take most.

        It shares nothing: with a prefix in common conversations take less.
        """
        stepper, cache = self._stepper, self._stepper.target.new_cache()
        each = [self.most_nbytes(cache, {}, tokens, None)]
        for source in stepper.sources:
            planes, drafter = stepper.widths(source, reused_state=True), source.drafter
            kept = stepper.kept_widths(source, planes, drafts=drafter is not None)
            each.append(self.most_nbytes(cache, kept, tokens, drafter))
        return max(each)


TOKEN_BYTES = 16  # cannot be guessed: it opens the conversation to its holder


class SessionRegistry:
    """All sessions of this server.

    Args:
        detached_seconds: how long a session waits for its client.
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
        return tuple(self._live_sessions.values())

    @property
    def detached(self) -> int:
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
        return self._make_live_session(self._make_token(TOKEN_BYTES))

    def attach(self, live: LiveSession, caller: Caller, stream: Attachment) -> None:
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
        live.close()
        self._live_sessions.pop(live.token, None)
        self._detached.pop(live.token, None)
        self._on_closed(live)

    def expire(self) -> int:
        overdue = self._clock() - self._detached_seconds
        dropped = [token for token, since in self._detached.items() if since <= overdue]
        for token in dropped:
            self.close(self._live_sessions[token])
        return len(dropped)


def _first_of_the_most(live_sessions: list[LiveSession], held: Counter[str], owner: str) -> LiveSession:
    """The first session of the owner that holds the most; of `owner` if it ties for the most."""
    return max(live_sessions, key=lambda live: (held[live.caller.owner], live.caller.owner == owner))
