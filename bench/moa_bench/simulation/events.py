"""Virtual time: what happens next, and one direction of a link in it.

State: a heap of events and a clock; of a link, netsim's own model. Invariant: nothing depends on real time, so equal
arguments give equal results.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

from moa_shared.errors import InternalError
from netsim.core.conditions import Conditions
from netsim.core.link import Direction, LinkModel, Release
from netsim.core.schedule import ConditionSchedule

PACKET_HEADER_BYTES = 52  # of TCP and IP, as netsim's stream proxy counts


class EventLoop:
    """An event loop in virtual time: runs callbacks in the order of their times."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def at(self, time_ms: float, callback: Callable[[], object]) -> None:
        heapq.heappush(self._events, (max(time_ms, self.now_ms), next(self._order), callback))

    def after(self, ms: float, callback: Callable[[], object]) -> None:
        self.at(self.now_ms + ms, callback)

    def run(self, until: Callable[[], bool]) -> None:
        """Until the condition holds."""
        while not until():
            if not self._events:
                raise InternalError(f"The simulation stands still at {self.now_ms:.0f} ms.")
            self.now_ms, _, callback = heapq.heappop(self._events)
            callback()


class OneWay:
    """One direction of a link; nothing is lost (a stream's losses are delays, and rare ones)."""

    def __init__(self, loop: EventLoop, conditions: Conditions, seed: int, direction: Direction) -> None:
        self.bytes = 0  # of the frames, without the packets' headers
        self._loop = loop
        self._model = LinkModel(ConditionSchedule([(0.0, conditions)]), seed, direction)

    def send(self, nbytes: int, deliver: Callable[[], object]) -> None:
        self.bytes += nbytes
        sent = self._model.admit(nbytes + PACKET_HEADER_BYTES, self._loop.now_ms / 1e3)
        if not isinstance(sent, Release) or not math.isfinite(sent.t):
            raise InternalError(f"A simulated link lost a frame of {nbytes} bytes: {sent}.")
        self._loop.at(sent.t * 1e3, deliver)
