"""One direction of the link: decides for each packet when it arrives, or why it does not.

Pure: the caller gives the time. The order is: outage, loss, queue limit, rate, delay, first-in-first-out, as in a
router before a radio: what is lost in the air was never queued. Same seed, same calls, same answers.
"""

import math
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import NamedTuple

from netsim.core.conditions import ConditionSchedule, DelayProcess, LossProcess


class Direction(StrEnum):
    """The two directions; up is from the client to the server."""

    UP = "up"
    DOWN = "down"


class Reason(StrEnum):
    OUTAGE = "outage"
    LOSS = "loss"
    QUEUE = "queue"


class Release(NamedTuple):
    """A packet that arrives at `t`, after `queue_s` in the queue and on the wire and `delay_s` in the air."""

    t: float
    queue_s: float
    delay_s: float


class Drop(NamedTuple):
    """A packet that never arrives."""

    reason: Reason


Verdict = Release | Drop
Observer = Callable[[Direction, float, int, Verdict], None]


class LinkModel:
    """One direction of a link; owns its queue, its delay and loss processes, and the time of the last arrival."""

    def __init__(
        self, schedule: ConditionSchedule, seed: int, direction: Direction, observer: Observer | None = None
    ) -> None:
        self.schedule = schedule
        self.direction = direction
        self.observer = observer
        # One source each: whether a packet is lost must not shift the delays of those after it.
        self._loss = LossProcess(Random(f"{seed}/{direction}/loss"))
        self._delay = DelayProcess(Random(f"{seed}/{direction}/delay"))
        self._acknowledgements = DelayProcess(Random(f"{seed}/{direction}/acknowledgements"))
        self._queue: deque[tuple[float, int]] = deque()  # (end of sending, bytes) of what has not left the queue
        self._queued_bytes = 0
        self._busy_until = -math.inf
        self._last_arrival = -math.inf

    def admit(self, nbytes: int, t: float) -> Verdict:
        """Verdict on a packet of `nbytes` (headers included) that enters at `t` seconds; times must not go back."""
        verdict = self._judge(nbytes, t)
        if self.observer is not None:
            self.observer(self.direction, t, nbytes, verdict)
        return verdict

    def _judge(self, nbytes: int, t: float) -> Verdict:
        schedule = self.schedule
        if schedule.cut_at(t):
            return Drop(Reason.OUTAGE)
        conditions = schedule.at(t)
        if self._loss.lost(conditions.loss):
            return Drop(Reason.LOSS)
        if self.queued_bytes(t) + nbytes > conditions.queue_bytes:
            return Drop(Reason.QUEUE)
        bits = nbytes * 8.0
        start = max(t, self._busy_until)
        if conditions.burst_bytes and 0.0 < conditions.rate_bps < math.inf:
            # An idle link saves up credit: sending may begin up to one burst in the past (a token bucket).
            start = max(t - conditions.burst_bytes * 8.0 / conditions.rate_bps, self._busy_until)
        busy_until = schedule.finish(start, bits)
        if busy_until == math.inf:
            return Drop(Reason.OUTAGE)
        self._busy_until = busy_until
        sent = max(t, busy_until)
        if sent > t:
            self._queue.append((sent, nbytes))
            self._queued_bytes += nbytes
        delay = self._delay.draw_s(schedule.at(sent).delay, sent)
        arrival = schedule.held_until(max(sent + delay, self._last_arrival))
        if schedule.cut_at(arrival):
            return Drop(Reason.OUTAGE)
        self._last_arrival = arrival
        return Release(arrival, sent - t, delay)

    def queued_bytes(self, t: float) -> int:
        queue = self._queue
        while queue and queue[0][0] <= t:
            self._queued_bytes -= queue.popleft()[1]
        return self._queued_bytes

    def acknowledgement_s(self, t: float) -> float:
        """Time that a small packet entering at `t` would take, for a stream whose acknowledgements are not packets."""
        waiting = max(0.0, self._busy_until - t) if self._queue else 0.0
        leaves = t + waiting
        return (
            self.schedule.held_until(leaves + self._acknowledgements.draw_s(self.schedule.at(leaves).delay, leaves)) - t
        )
