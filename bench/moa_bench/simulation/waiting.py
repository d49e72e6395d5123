"""A rule that the real server does not have: a session without nodes waits for its draft while a forward runs.

Pure. State: of each session, how long after a verdict its draft has come. Invariant: nobody waits twice in a row.

A plain step costs its row, at the price of time (`Schedule.rate`). It brings a token that would not have come with the
draft if the draft's first node is wrong; if that is right, it makes the node useless. So a session waits if the price
of a row is more than the chance that the node is wrong. docs/adr/0025 says what the rule overlooks.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_server.drafting.forward_cost import ForwardCost
from moa_shared.drafting.estimates import Smoothed


class DueDraft:
    """When one session's draft is due."""

    def __init__(self) -> None:
        self.waits = False  # while the newest forward runs
        self._verdict_ms = 0.0
        self._after_ms = Smoothed()

    def on_verdict(self, now_ms: float) -> None:
        """A verdict has been sent."""
        self._verdict_ms = now_ms

    def on_draft(self, now_ms: float) -> None:
        """A draft has come that begins with the newest verdict."""
        self._after_ms.add(now_ms - self._verdict_ms)

    def comes_by(self, ms: float) -> bool:
        """Whether it is likely to have come by then."""
        return self._after_ms.samples > 0 and self._verdict_ms + self._after_ms.mean + self._after_ms.deviation <= ms


def choose_waiting(
    drafts: Sequence[tuple[DueDraft, float | None]], rows: int, now_ms: float, rate: float, cost: ForwardCost
) -> None:
    """Decides who waits while the next forward runs.

    Args:
        drafts: of each session, with the chance that its draft's first node is right; None: nodes have come.
        rows: of the forward beyond the first if nobody waits.
        rate: tokens a millisecond.
    """
    for draft, right in drafts:
        has_waited, draft.waits = draft.waits, False
        if right is None or has_waited or not rows:  # nobody is left to step
            continue
        if draft.comes_by(now_ms + cost.ms(rows)):
            draft.waits = rate * (cost.ms(rows) - cost.ms(rows - 1)) > 1 - right
            rows -= draft.waits
