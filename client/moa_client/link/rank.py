"""Which of several servers of one model to talk to: the one whose next token should come first. Pure.

A token of a plain stream takes a step of the server, 1 / (1 - load) times as long where others are answered too, and
the first one of each answer a round trip besides; so does each correction of a draft. Before the first one the server
reads what it does not hold of the text, which its load slows down alike. Clock readings are arguments, in seconds.
"""

import math
from dataclasses import dataclass

MOST_LOAD = 0.95  # beyond it the time of a step says little: the server may refuse at any moment


@dataclass(frozen=True, slots=True)
class ServerRank:
    """What is known about a server."""

    rtt_ms: float | None = None  # a round trip; None: not measured
    step_ms: float = 0.0  # a plain step, of a server that has nothing else to do
    load: float = 0.0  # how much of it is taken, 0 to 1
    has_model: bool | None = None  # whether it serves the conversation's model; None: not known
    has_execution: bool = True  # whether it decides with the arithmetic on which the text began
    has_drafter: bool = True  # whether it has memory for this device's drafter
    avoid_until: float = 0.0  # it has failed or refused, and is the last resort until then
    unread_tokens: int = 0  # of the conversation's text, that it must read first
    read_ms: float = 0.0  # how long it takes to read one

    def is_avoided(self, now: float) -> bool:
        return now < self.avoid_until or self.load >= 1

    def place(self, now: float) -> tuple[bool, bool, float, bool, bool, float]:
        """Its place in the order in which to try servers; one of another model comes last.

        A text should continue as it began, so a server of another execution comes after all of the same that can be
        had. Drafts from here make up for many milliseconds, so one without memory for the drafter comes after all that
        have it. Then the expected time of the next token, and a round trip, decides.
        """
        idle_ms = self.step_ms + self.unread_tokens * self.read_ms
        cost_ms = math.inf if self.rtt_ms is None else self.rtt_ms + idle_ms / (1 - min(self.load, MOST_LOAD))
        is_avoided = self.is_avoided(now)
        until = self.avoid_until if is_avoided else 0.0
        return self.has_model is False, is_avoided, until, not self.has_execution, not self.has_drafter, cost_ms
