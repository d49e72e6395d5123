"""The pool of keys and values: how many bytes all sessions may hold, and who gives some up for whom.

Pure: reads what sessions hold, and decides; the engine frees. State: what each session was promised, least recently
used first. Invariant: the promises never exceed the budget, so that an answer which was allowed to begin has room until
its end.
"""

from __future__ import annotations

from collections.abc import Callable

from moa_shared.errors import ContextLengthError, OverloadedError
from rich.filesize import decimal

from moa_server.engine.live_session import LiveSession
from moa_server.session.session import Phase


class KVPool:
    """Shares out bytes of keys and values, and of memory rows, among all sessions.

    Args:
        budget: bytes of all sessions together.
        release: frees the keys and values of an idle session; it keeps its stream and its text.
    """

    def __init__(self, budget: int, release: Callable[[LiveSession], None]) -> None:
        self.budget = budget
        self._release = release
        self._promised: dict[LiveSession, int] = {}

    @property
    def promised(self) -> int:
        """Bytes that sessions hold or may come to hold."""
        return sum(self._promised.values())

    def reserve(self, live: LiveSession, nbytes: int) -> None:
        """Promises a session `nbytes` in all, taken from idle ones if needed: its own client's first, oldest first.

        Raises:
            ContextLengthError: more than the whole budget.
            OverloadedError: too little can be freed; nobody has lost anything.
        """
        if nbytes > self.budget:
            raise ContextLengthError(
                f"The answer may take {decimal(nbytes)} of keys and values; there are {decimal(self.budget)} for all.",
                hint="Ask for fewer tokens, shorten the conversation, or raise the server's --kv-bytes.",
            )
        room = self.budget - self.promised + self._promised.get(live, 0)
        if room < nbytes:
            room += self._settle(live)
        victims = []
        for victim in self._victims(live):
            if room >= nbytes:
                break
            victims.append(victim)
            room += self._promised[victim]
        if room < nbytes:
            raise OverloadedError(f"The {decimal(self.budget)} of keys and values of this server are all in use.")
        for victim in victims:
            del self._promised[victim]
            self._release(victim)
        self._promised.pop(live, None)
        self._promised[live] = nbytes

    def forget(self, live: LiveSession) -> None:
        """Takes back what an ended session was promised."""
        self._promised.pop(live, None)

    def _settle(self, asking: LiveSession) -> int:
        """Takes back what idle sessions were promised but did not use; returns how much."""
        before = self.promised
        for live, promised in self._promised.items():
            if live.is_idle and live.session.phase is Phase.IDLE and live is not asking:
                self._promised[live] = min(promised, live.tensors.nbytes)
        return before - self.promised

    def _victims(self, asking: LiveSession) -> list[LiveSession]:
        """Who gives up first; within each group, least recently used first."""
        idle = [live for live in self._promised if live.is_idle and live is not asking]
        return sorted(idle, key=lambda live: (live.client != asking.client, live.listener is not None))
