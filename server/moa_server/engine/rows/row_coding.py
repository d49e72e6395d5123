"""Which memory rows are coded with a forward, without being asked for."""

from __future__ import annotations

from dataclasses import dataclass

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.stepper import NewestRows
from moa_server.memory.feed import MemoryFeed
from moa_server.session.verification import StepPlan

# A row that leaves with each verdict takes a tenth of a plain step of the default target on one core: coding, larger
# frames. So where no guess was right for some steps, rows go several at a time.
PATIENT_STEPS = 4
ROWS_TOGETHER = 8


@dataclass(frozen=True, slots=True)
class Coding:
    """Which rows to code with a forward.

    Args:
        at_once: before its verdict goes out, 0.1 ms: they leave with it, which spares the client a wait of several ms
            where loop and model share a core.
        after: those that take time.
        postponed: the rows of this step are left to a later one.
        feed: the feed that the rows are for; another stream may have taken over the session by the time they are ready.
    """

    at_once: tuple[NewestRows, ...]
    after: tuple[NewestRows, ...]
    postponed: bool = False
    feed: MemoryFeed | None = None

    def gives_rows(self, feed: MemoryFeed) -> bool:
        """Whether it yields rows for this feed, now or later."""
        return self.feed is feed and bool(self.at_once or self.after or self.postponed)


NO_CODING = Coding((), ())


def newest_coding(live: LiveSession, plan: StepPlan) -> Coding:
    """Which rows of this step to code without being asked: none of a thin memory, whose few are asked for."""
    feed = live.stream.feed
    if feed is None or feed.thin is not None or not feed.has_room:
        return NO_CODING
    left = [plane for plane in feed.planes if not feed.is_encoded(plane)]
    fruitless = live.drafting.fruitless_steps
    if left and fruitless >= PATIENT_STEPS and fruitless % ROWS_TOGETHER:
        return Coding((), (), postponed=True, feed=feed)
    after = [plane for plane in feed.planes if feed.is_encoded(plane) and live.stream.budget.allows_newest]
    return Coding(
        tuple(NewestRows(plane, feed.ready(plane), feed.codec, feed.most_rows(plane)) for plane in left),
        tuple(
            NewestRows(plane, feed.unsent_before(plane, plan.cached), feed.codec, feed.most_rows(plane))
            for plane in after
        ),
        feed=feed,
    )
