"""The registry of sessions, and the pool of their keys and values: how many there may be, and who gives way for whom.

Registry: pure but for the clock that it is given. State: all live sessions by resume token.
Invariants: at most `limit` of them, `stream_limit` attached; a detached one is dropped after its time, or earlier when
its place is needed. The client that takes up most gives way first: the one that asks, if none has more.

Pool: reads what sessions hold, and decides; the engine frees. State: what each session was promised, least recently
used first. Invariants: an answer begins only if all promises and the shared pages, each counted once, fit the budget,
and has room until its end; what sessions and the index hold never exceeds the budget.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from moa_shared.errors import ContextLengthError, OverloadedError
from rich.filesize import decimal

from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import OwnDrafter
from moa_server.engine.live_session import Attachment, LiveSession
from moa_server.engine.prefix_index import PrefixIndex
from moa_server.engine.stepper import Stepper
from moa_server.session.memory_feed import KeptPlane, most_nbytes
from moa_server.session.session import SessionPhase
from moa_server.verifier import KVCache


class SessionSize:
    """The size of conversations with this target and these drafters.

    `draft_nodes`: the most of one verification, whose rows come on top of the text's.
    """

    def __init__(self, stepper: Stepper, draft_nodes: int) -> None:
        self._stepper = stepper
        self._draft_nodes = draft_nodes

    def most_nbytes(
        self, cache: KVCache, widths: Mapping[KeptPlane, int], tokens: int, drafter: OwnDrafter | None
    ) -> int:
        """The most bytes of a conversation of so many tokens. `drafter`: the server's; None: it does not draft."""
        rows = tokens + self._draft_nodes
        nbytes = cache.most_nbytes(rows, self._draft_nodes) + sum(most_nbytes(width, rows) for width in widths.values())
        return nbytes + (drafter.most_nbytes(rows) if drafter is not None else 0)

    def largest(self, tokens: int) -> int:
        """The same with the memory rows that take most, where nothing is shared."""
        stepper, cache = self._stepper, self._stepper.target.new_cache()
        each = [self.most_nbytes(cache, {}, tokens, None)]
        for source in stepper.sources:
            planes, drafter = stepper.widths(source, reused_state=True), source.drafter
            kept = stepper.kept_widths(source, planes, drafts=drafter is not None)
            each.append(self.most_nbytes(cache, kept, tokens, drafter))
        return max(each)


class SessionRegistry:
    """All sessions of this server.

    `detached_seconds`: how long a session waits for its client.
    """

    def __init__(
        self,
        limit: int,
        stream_limit: int,
        detached_seconds: float,
        new: Callable[[], LiveSession],
        clock: Callable[[], float],
        on_closed: Callable[[LiveSession], None],
    ) -> None:
        self._limit = limit
        self._stream_limit = stream_limit
        self._detached_seconds = detached_seconds
        self.new = new
        self._clock = clock
        self._on_closed = on_closed
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
        own = [live for live in self._live_sessions.values() if live.caller.owner == caller.owner]
        excess = max(0, len(own) + 1 - limit) if limit else 0
        idle = sorted((live for live in own if live.is_idle), key=lambda live: live.token not in self._detached)
        if excess > len(idle):
            raise OverloadedError(f"The key {caller.key} may have {limit} sessions at once, and all have answers.")
        for live in idle[:excess]:
            _displace(live)
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
        owners = {each for each, count in held.items() if each == owner or count > held[owner]}
        idle = [live for live in attached if live.is_idle and live.caller.owner in owners]
        if not idle:
            raise OverloadedError(f"The server has {self._stream_limit} streams already, which is its limit.")
        live = _first_of_the_most(idle, held, owner)
        _displace(live)
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


def _displace(live: LiveSession) -> None:
    if live.stream.listener is not None:
        live.stream.listener.on_displaced()


def _first_of_the_most(live_sessions: list[LiveSession], held: Counter[str], owner: str) -> LiveSession:
    """The first session of the owner that holds the most; of `owner` if it ties for the most."""
    return max(live_sessions, key=lambda live: (held[live.caller.owner], live.caller.owner == owner))


class Reservation(NamedTuple):
    """What a session may come to hold."""

    nbytes: int  # in all, its shared pages included
    page_nbytes: int  # of each page that it shares, which the index counts in its place
    checkpoint_nbytes: int = 0  # likewise of each checkpoint


class KVPool:
    """Shares out bytes of keys and values, and of memory rows, among all sessions.

    `budget`: bytes of all sessions together, and of what is kept of ended ones.
    """

    def __init__(self, budget: int, release: Callable[[LiveSession], None], prefixes: PrefixIndex[LiveSession]) -> None:
        self.budget = budget
        self._release = release
        self._prefixes = prefixes
        self._promised: dict[LiveSession, Reservation] = {}

    @property
    def promised(self) -> int:
        return self._prefixes.nbytes + sum(self._own(live) for live in self._promised)

    @property
    def running(self) -> int:
        return sum(self._own(live) for live in self._promised if not live.is_idle)

    @property
    def taken(self) -> float:
        return self.running / self.budget

    @property
    def held(self) -> int:
        owns = (self._own(live, each._replace(nbytes=live.tensors.nbytes)) for live, each in self._promised.items())
        return self._prefixes.nbytes + sum(owns)

    def reserve(self, live: LiveSession, nbytes: int, page_nbytes: int = 0, checkpoint_nbytes: int = 0) -> None:
        """Promises a session `nbytes` in all, of which each page that it shares takes `page_nbytes`.

        If needed they are taken from the pages that no session uses, and then from idle sessions: its own client's
        first, oldest first.
        """
        before = self._promised.pop(live).nbytes if live in self._promised else 0
        # Whatever comes of this, it may still hold pages that no longer belong to its text.
        self._promised[live] = Reservation(max(before, live.tensors.nbytes), page_nbytes, checkpoint_nbytes)
        if nbytes > self.budget:
            raise ContextLengthError(
                f"The answer may take {decimal(nbytes)} of keys and values; there are {decimal(self.budget)} for all.",
                hint="Ask for fewer tokens, shorten the conversation, or raise the server's --kv-bytes.",
            )
        self._check_share(live, nbytes)
        # A forward under way may still fill what was promised before.
        nbytes = max(nbytes, live.tensors.nbytes, before if live.turn.stepping else 0)
        promise = Reservation(nbytes, page_nbytes, checkpoint_nbytes)
        asked = self._own(live, promise)
        room = self.budget - self.promised + self._own(live)
        if room < asked:
            room += self._settle(live)
        victims = self._choose_victims(live, asked - room)
        for victim in victims:
            room += self._own(victim)
            self._give_up(victim)
        self._prefixes.drop(asked - room)
        self._promised[live] = promise

    def forget(self, live: LiveSession) -> None:
        self._promised.pop(live, None)
        self._prefixes.let_go(live)

    def _check_share(self, asking: LiveSession, nbytes: int) -> None:
        """Frees idle sessions of the caller's own if its share is used up."""
        caller = asking.caller
        limit = caller.limits.kv_bytes
        if not limit:
            return
        if nbytes > limit:
            raise ContextLengthError(
                f"The answer may take {decimal(nbytes)} of keys and values; "
                f"the key {caller.key} may have {decimal(limit)}.",
                hint="Ask for fewer tokens, or shorten the conversation; the operator can raise the limit of your key.",
            )
        own = [live for live in self._promised if live is not asking and live.caller.owner == caller.owner]
        idle = [live for live in own if live.is_idle]  # least recently used first
        excess = nbytes + sum(map(self._own, own)) - limit
        if excess > sum(map(self._own, idle)):
            raise OverloadedError(f"The {decimal(limit)} of keys and values of the key {caller.key} are all in use.")
        for live in idle:
            if excess <= 0:
                return
            excess -= self._own(live)
            self._give_up(live)

    def _give_up(self, victim: LiveSession) -> None:
        del self._promised[victim]
        self._release(victim)
        self._prefixes.let_go(victim)

    def _own(self, live: LiveSession, promise: Reservation | None = None) -> int:
        promise = promise or self._promised[live]
        shared = len(self._prefixes.held(live)) * promise.page_nbytes
        if promise.checkpoint_nbytes:
            checkpoints = self._prefixes.count_checkpoints(live, live.session.states.checkpoints)
            shared += checkpoints * promise.checkpoint_nbytes
        return max(0, promise.nbytes - shared)

    def _settle(self, asking: LiveSession) -> int:
        """Takes back what idle sessions were promised but did not use; returns how much."""
        before = self.promised
        for live, promise in self._promised.items():
            if live.is_idle and live.session.phase is SessionPhase.IDLE and live is not asking:
                self._promised[live] = promise._replace(nbytes=min(promise.nbytes, live.tensors.nbytes))
        return before - self.promised

    def _choose_victims(self, asking: LiveSession, nbytes: int) -> list[LiveSession]:
        """Who must give up so that `nbytes` can be had, the pages that no session uses included."""
        victims: list[LiveSession] = []
        missing = nbytes - self._prefixes.spare_nbytes
        candidates = self._candidates(asking)
        for victim, left in zip(candidates, self._prefixes.bytes_left_by(candidates), strict=True):
            if missing <= 0:
                break
            victims.append(victim)
            missing -= self._own(victim) + left
        if missing > 0:
            raise OverloadedError(f"The {decimal(self.budget)} of keys and values of this server are all in use.")
        return victims

    def _candidates(self, asking: LiveSession) -> list[LiveSession]:
        """Who gives up first; within each group, least recently used first."""
        idle = [
            live
            for live in self._promised
            if live.is_idle and live is not asking and (self._own(live) or self._prefixes.held(live))
        ]
        return sorted(
            idle, key=lambda live: (live.caller.owner != asking.caller.owner, live.stream.listener is not None)
        )
