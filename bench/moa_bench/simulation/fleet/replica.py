"""A replica on paper: calls that its event loop takes one after the other, and forwards that read prompts in turn.

State: the calls and conversations that wait. Invariants: one call and one forward at a time; prompts take turns slice
by slice, as the server's schedule has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.fleet.assumptions import FleetPlan


@dataclass(slots=True)
class _Reading:
    """A conversation that waits for its next token.

    Args:
        unread: tokens that the replica has to read before.
    """

    unread: int
    on_text: Callable[[], None]


class PlannedReplica:
    """One replica."""

    def __init__(self, loop: EventLoop, plan: FleetPlan) -> None:
        self.answers = plan.answers
        self.came = 0  # conversations without keys and values here
        self.kv_tokens = plan.sessions * (plan.least_tokens + plan.most_tokens) // 2
        self.most_calls = 0  # that waited at once
        self.read_tokens = 0
        self._loop, self._plan = loop, plan
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()
        self._is_calling = self._is_stepping = False
        self._reading: deque[_Reading] = deque()
        self._resumed: list[_Reading] = []

    @property
    def load(self) -> float:
        """As a server tells it."""
        others_ms = self.answers * self._plan.costs.row_ms
        return others_ms / (self._plan.costs.forward_ms(0, 1) + others_ms)

    # ------------------------------------------------------------ calls

    def call(self, ms: float, answer: Callable[[], None]) -> None:
        """Takes a call that needs so much time of the event loop."""
        self._calls.append((ms, answer))
        self.most_calls = max(self.most_calls, len(self._calls))
        if not self._is_calling:
            self._next_call()

    def _next_call(self) -> None:
        self._is_calling = bool(self._calls)
        if not self._calls:
            return
        ms, answer = self._calls[0]

        def done() -> None:
            self._calls.popleft()
            answer()
            self._next_call()

        self._loop.after(ms, done)

    # ------------------------------------------------------------ forwards

    def resume(self, text: int, *, has_kv: bool, on_text: Callable[[], None]) -> None:
        """Continues the answer of a conversation of so many tokens.

        Args:
            has_kv: whether its keys and values are here.
            on_text: called when its next token has been chosen.
        """
        unread = 0 if has_kv else text
        if not has_kv:
            self.came += 1
            self.kv_tokens += text
        self.read_tokens += unread
        waiting = _Reading(unread, on_text)
        (self._reading if unread else self._resumed).append(waiting)
        if not self._is_stepping:
            self._is_stepping = True
            # the forward of the answers that were under way before has begun some time ago
            self._loop.after(self._plan.costs.forward_ms(0, self.answers) / 2, self._step)

    def _step(self) -> None:
        """Begins a forward: all answers, and a slice of one prompt."""
        resumed, self._resumed = self._resumed, []
        self.answers += len(resumed)
        reading, read = None, 0
        if self._reading:
            reading = self._reading.popleft()
            read = min(reading.unread, self._plan.slice_tokens(self.answers))
        if not resumed and reading is None:
            self._is_stepping = False
            return

        def done() -> None:
            for each in resumed:
                each.on_text()
            if reading is not None:
                reading.unread -= read
                if reading.unread:
                    self._reading.append(reading)
                else:
                    self.answers += 1
                    reading.on_text()
            self._step()

        self._loop.after(self._plan.costs.forward_ms(read, self.answers), done)
