"""How much of the inference thread's time a session's memory rows may take, so that they cost no more than they gain.

Pure. State: a balance in ms. A small share of every forward and of what accepted drafts have saved come in, what
encoding took goes out; an answer begins with a loan. Idle time is free and is not recorded.
Invariant: at any acceptance an answer loses to plain streaming at most `share` of its time and LOAN_STEPS plain steps.
"""

from __future__ import annotations

from moa_server.settings import MEMORY_SHARE

GAIN = 1 / 32  # of the time that drafts have saved: all rows raise the acceptance by 0 to 4 % over a few (feed.py)
LOAN_STEPS = 0.3  # plain steps: one chunk, of the newest rows of the prompt, without which a drafter has no memory


class MemoryBudget:
    """The time that one answer's memory may take.

    Args:
        share: of an answer's time that memory may take even if no draft is right; 1: all rows are sent.
        plain_ms: the time of a plain step until one has been measured; None: there is no limit until then.
    """

    def __init__(self, share: float = MEMORY_SHARE, plain_ms: float | None = None) -> None:
        self.share = share
        self._balance_ms = 0.0
        self._plain_ms = plain_ms

    def begin_answer(self) -> None:
        """Starts a new answer, which has its own balance."""
        self._balance_ms = 0.0

    def on_step(self, step_ms: float, tokens: int, plain_ms: float) -> None:
        """A forward that chose tokens has ended.

        Args:
            step_ms: how long it took; `tokens`: how many it committed.
            plain_ms: how long a plain step takes.
        """
        self._plain_ms = plain_ms
        saved_ms = max(0.0, tokens * plain_ms - step_ms)
        self._balance_ms += self.share * step_ms + GAIN * saved_ms

    def on_encoded(self, ms: float) -> None:
        """Charges time that encoding took while a forward waited."""
        self._balance_ms -= ms

    @property
    def allows_newest(self) -> bool:
        """Whether rows of the newest tokens may be encoded: they are worth the most, and have the whole loan."""
        return self._plain_ms is None or self._balance_ms > -LOAN_STEPS * self._plain_ms

    @property
    def allows_older(self) -> bool:
        """Whether rows of older tokens may be encoded before there is idle time: half of the loan is theirs."""
        return self._plain_ms is None or self._balance_ms > -LOAN_STEPS * self._plain_ms / 2
