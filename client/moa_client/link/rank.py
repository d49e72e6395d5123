"""Which of several servers of one model to talk to: the one whose next token should come first. Pure.

A token of a plain stream takes a step of the server, 1 / (1 - load) times as long where others are answered too, and
the first one of each answer a round trip besides; so does each correction of a draft. Before the first one the server
reads what it does not hold of the text, which its load slows down alike. Clock readings are arguments, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_LOAD = 0.95  # beyond it the time of a step says little: the server may refuse at any moment
# A conversation that is served changes only to a server that is better by a third, and by more than the jitter of a
# round trip: the estimate is rough, and the other server's time for the text is lost to those that it answers.
CLEARLY_BETTER = 2 / 3
LEAST_GAIN_MS = 10.0


@dataclass(frozen=True, slots=True)
class ServerRank:
    """What is known about a server.

    Args:
        rtt_ms: a round trip; None: not measured.
        step_ms: a plain step, of a server that has nothing else to do; `load`: how much of it is taken, 0 to 1.
        has_model: whether it serves the conversation's model; None: not known.
        has_execution: whether it decides with the arithmetic on which the text began.
        has_form: whether it holds the answer to the form that it must have, if it must have one.
        has_drafter: whether it has memory for this device's drafter.
        avoid_until: it has failed or refused, and is the last resort until then.
        unread_tokens: of the conversation's text, that it must read first; `read_ms`: how long it takes to read one.
    """

    rtt_ms: float | None = None
    step_ms: float = 0.0
    load: float = 0.0
    has_model: bool | None = None
    has_execution: bool = True
    has_form: bool = True
    has_drafter: bool = True
    avoid_until: float = 0.0
    unread_tokens: int = 0
    read_ms: float = 0.0

    @property
    def cost_ms(self) -> float:
        """Expected time of the next token, and a round trip; infinite if nothing is known."""
        if self.rtt_ms is None:
            return math.inf
        idle_ms = self.step_ms + self.unread_tokens * self.read_ms
        return self.rtt_ms + idle_ms / (1 - min(self.load, MOST_LOAD))

    def is_avoided(self, now: float) -> bool:
        return not self.has_form or now < self.avoid_until or self.load >= 1


def rank(standings: Sequence[ServerRank], now: float) -> list[int]:
    """The order in which to try them, as indices; servers of another model are left out.

    A text should continue as it began, so a server of another execution comes after all of the same that can be had.
    Drafts from here make up for many milliseconds, so a server without memory for the drafter comes after all that have
    it.
    """

    def place(index: int) -> tuple[bool, bool, float, bool, bool, float, int]:
        each = standings[index]
        is_avoided = each.is_avoided(now)
        until = each.avoid_until if is_avoided else 0.0
        return not each.has_form, is_avoided, until, not each.has_execution, not each.has_drafter, each.cost_ms, index

    return sorted((index for index, each in enumerate(standings) if each.has_model is not False), key=place)


def is_clearly_better(other: ServerRank, current: ServerRank, now: float) -> bool:
    """Whether a served conversation should change to another server, between two answers."""
    if other.is_avoided(now) or not other.has_model:
        return False
    if not current.has_form:
        return True
    if current.has_drafter and not other.has_drafter:
        return False
    if current.has_execution and not other.has_execution:
        return False
    if other.has_drafter and not current.has_drafter:
        return True
    gain = current.cost_ms - other.cost_ms
    return gain > LEAST_GAIN_MS and other.cost_ms < CLEARLY_BETTER * current.cost_ms
