"""The pool of keys and values: how many bytes all sessions may hold, and who gives some up for whom.

Pure: reads what sessions hold, and decides; the engine frees. State: what each session was promised, least recently
used first. Invariants: an answer begins only if all promises and the shared pages, each counted once, fit the budget,
and has room until its end; what sessions and the index hold never exceeds the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moa_shared.errors import ContextLengthError, OverloadedError
from rich.filesize import decimal

from moa_server.access.limits import KeyUsage, sum_holdings
from moa_server.engine.live_session import LiveSession
from moa_server.engine.prefixes.index import PrefixIndex
from moa_server.session.session import SessionPhase


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a session may come to hold.

    Args:
        nbytes: in all, its shared pages included.
        page_nbytes: of each page that it shares, which the index counts in its place.
    """

    nbytes: int
    page_nbytes: int


class KVPool:
    """Shares out bytes of keys and values, and of memory rows, among all sessions.

    Args:
        budget: bytes of all sessions together, and of what is kept of ended ones.
        elsewhere: bytes that an owner's running answers have at other replicas of a fleet.
    """

    def __init__(
        self,
        budget: int,
        release: Callable[[LiveSession], None],
        prefixes: PrefixIndex[LiveSession],
        elsewhere: Callable[[str], int] = lambda owner: 0,
    ) -> None:
        self.budget = budget
        self._release = release
        self._prefixes = prefixes
        self._elsewhere = elsewhere
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
        owns = (self._own(live, replace(each, nbytes=live.tensors.nbytes)) for live, each in self._promised.items())
        return self._prefixes.nbytes + sum(owns)

    def reserve(self, live: LiveSession, nbytes: int, page_nbytes: int = 0) -> None:
        """Promises a session `nbytes` in all.

        If needed they are taken from the pages that no session uses, and then from idle sessions: its own client's
        first, oldest first.

        Args:
            page_nbytes: of each page that it shares.
        """
        before = self._promised.pop(live).nbytes if live in self._promised else 0
        # Whatever comes of this, it may still hold pages that no longer belong to its text.
        self._promised[live] = Reservation(max(before, live.tensors.nbytes), page_nbytes)
        if nbytes > self.budget:
            raise ContextLengthError(
                f"The answer may take {decimal(nbytes)} of keys and values; there are {decimal(self.budget)} for all.",
                hint="Ask for fewer tokens, shorten the conversation, or raise the server's --kv-bytes.",
            )
        self._check_share(live, nbytes)
        # A forward under way may still fill what was promised before.
        nbytes = max(nbytes, live.tensors.nbytes, before if live.turn.stepping else 0)
        promise = Reservation(nbytes, page_nbytes)
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
        excess = nbytes + sum(self._own(live) for live in own) + self._elsewhere(caller.owner) - limit
        if excess > sum(self._own(live) for live in own if live.is_idle):
            raise OverloadedError(f"The {decimal(limit)} of keys and values of the key {caller.key} are all in use.")
        self.give_up(caller.owner, excess, but=asking)

    def holdings(self) -> dict[str, KeyUsage]:
        return sum_holdings(
            (live.caller.owner, live.caller.limits.kv_bytes, self._own(live), live.is_idle) for live in self._promised
        )

    def give_up(self, owner: str, nbytes: int, but: LiveSession | None = None) -> None:
        """Frees so many bytes of an owner, or all that its idle sessions have: least recently used first.

        Args:
            but: a session that keeps what it has.
        """
        idle = [live for live in self._promised if live.caller.owner == owner and live.is_idle and live is not but]
        for live in idle:
            if nbytes <= 0:
                return
            nbytes -= self._own(live)
            self._give_up(live)

    def _give_up(self, victim: LiveSession) -> None:
        del self._promised[victim]
        self._release(victim)
        self._prefixes.let_go(victim)

    def _own(self, live: LiveSession, promise: Reservation | None = None) -> int:
        promise = promise or self._promised[live]
        return max(0, promise.nbytes - len(self._prefixes.held(live)) * promise.page_nbytes)

    def _settle(self, asking: LiveSession) -> int:
        """Takes back what idle sessions were promised but did not use; returns how much."""
        before = self.promised
        for live, promise in self._promised.items():
            if live.is_idle and live.session.phase is SessionPhase.IDLE and live is not asking:
                self._promised[live] = replace(promise, nbytes=min(promise.nbytes, live.tensors.nbytes))
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
