"""Plans a forward: which sessions have a part in it, with which rows, and for which the server drafts first.

State: whether there is time for drafts; the schedule has the sessions that wait. Runs on the event loop. Invariant: a
defect in one session loses that session, and the others are planned as if it were not there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from moa_shared.programs.machine import ms_since

from moa_server.engine.inference_thread import SessionJobs, SessionLosses
from moa_server.engine.live_session import LiveSession
from moa_server.engine.page_sharing import PageMoves
from moa_server.engine.schedule import FairQueue, Schedule, StepCandidate
from moa_server.engine.server_drafts import DraftedWork, DraftOrder
from moa_server.engine.stepper import CodedRows, NewestRows
from moa_server.session.memory_feed import MemoryFeed
from moa_server.session.verification import NO_DRAFT, StepPlan

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


@dataclass(eq=False, slots=True)
class ForwardPart(DraftedWork):
    """A part of a forward. Owned by the loop until it is submitted, by the thread until it is posted back.

    `coding`: which rows to code with it; `coded`: those that leave with its verdict.
    """

    live: LiveSession = field(kw_only=True)
    coding: Coding = field(kw_only=True)
    reads: bool = False
    coded: list[CodedRows] = field(default_factory=list)

    @classmethod
    def planned(
        cls, live: LiveSession, plan: StepPlan, coding: Coding, *, reads: bool = False, order: DraftOrder | None = None
    ) -> ForwardPart:
        forced = live.drafting.drafts_forced
        return cls(live.tensors, plan, drafts_forced=forced, order=order, live=live, coding=coding, reads=reads)


# Of the time that a step took, before the next one begins: reading a token holds Python's lock, for which the event
# loop and the inference thread wait too. A single answer does not notice, for its forward takes as long.
REST = 2.0


class SlowForms:
    def __init__(self, jobs: SessionJobs, wake: Callable[[LiveSession], None]) -> None:
        self._jobs = jobs
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "slow forms")
        self._waiting = FairQueue[tuple[LiveSession, StepPlan]](lambda each: each[0].caller.owner)
        self._works = False

    def defers(self, live: LiveSession, plan: StepPlan) -> bool:
        """Whether a session's step waits for its form, which is then worked on."""
        if not plan.form_needs_time:
            return False
        live.turn.stepping = True
        self._waiting.add((live, plan.without_draft()))
        self._begin()
        return True

    def _begin(self) -> None:
        if self._waiting and not self._works:
            self._works = True
            self._thread.submit(self._find, *self._waiting.take())

    def _find(self, live: LiveSession, plan: StepPlan) -> None:
        began = time.perf_counter()
        try:
            plan.allowed()
        except Exception as error:  # noqa: BLE001 (whatever it raises ends only this session)
            self._jobs.post_loss(live, error)
        self._jobs.post(partial(self._end, live, ms_since(began)))

    def _end(self, live: LiveSession, ms: float) -> None:
        live.turn.stepping = False
        self._wake(live)
        asyncio.get_running_loop().call_later(REST * ms / 1e3, self._rested)

    def _rested(self) -> None:
        self._works = False
        self._begin()


class ForwardPlanner:
    """Plans forwards.

    Attributes:
        has_time: the newest forward with answers had time for drafts.
    """

    def __init__(
        self, schedule: Schedule[LiveSession], pages: PageMoves, slow_forms: SlowForms, losses: SessionLosses
    ) -> None:
        self._schedule = schedule
        self._pages = pages
        self._slow_forms = slow_forms
        self._losses = losses
        self.has_time = True

    def plan(self) -> list[ForwardPart]:
        while lives := self._schedule.take_answers():
            parts = self._plan_answers(lives)
            if parts:
                return parts + self._plan_reading(parts)
        return self._plan_reading([])

    def _plan_answers(self, lives: Sequence[LiveSession]) -> list[ForwardPart]:
        self.has_time = self._schedule.has_time(len(lives))
        offers: list[tuple[LiveSession, StepPlan, StepCandidate]] = []
        for live in lives:
            live.turn.queued = False
            if (plan := self._plan_step(live)) is None:
                continue
            if (candidate := self._offer(live, plan)) is not None:
                offers.append((live, plan, candidate))
        trees = self._schedule.choose_nodes([candidate for _, _, candidate in offers])
        parts = []
        for (live, plan, _), tree in zip(offers, trees, strict=True):
            if (chosen := plan.pick(tree)) is not None:
                order = None
                if self.has_time or live.drafting.verifies_all:
                    order = live.drafting.order(live.session, chosen, has_price=self._schedule.cost.known)
                parts.append(ForwardPart.planned(live, chosen, newest_coding(live, chosen), order=order))
        return parts

    def _plan_reading(self, answers: Sequence[ForwardPart]) -> list[ForwardPart]:
        room = self._schedule.read_tokens(sum(part.rows for part in answers))
        parts: list[ForwardPart] = []
        while room > 0 and (live := self._schedule.take_prompt()) is not None:
            live.turn.queued = False
            if self._pages.adopt(live):
                continue
            plan = self._plan_step(live, most_read=room)
            if plan is not None:
                parts.append(ForwardPart.planned(live, plan, newest_coding(live, plan), reads=True))
                room -= parts[-1].rows
                self._schedule.on_read(live, parts[-1].rows)
        return parts

    def _plan_step(self, live: LiveSession, most_read: int | None = None) -> StepPlan | None:
        if live.turn.stepping:
            return None  # its question came while it waited, and it is being given pages: it waits again after that
        if live.closed or live.turn.held or (live.stream.listener is None and live.session.unread > 1):
            return None  # no client waits for this prompt
        try:
            plan = live.session.plan_step(most_read)
            if plan is None or self._slow_forms.defers(live, plan):
                return None
            return plan.without_draft() if plan.form_is_slow else plan
        except Exception as error:  # noqa: BLE001 (a defect in one session must not stop the others)
            self._losses.lose(live, error)
            return None

    def _offer(self, live: LiveSession, plan: StepPlan) -> StepCandidate | None:
        """What a session offers to a forward: no drafts while there is no time for any."""
        record, verifies_all = live.drafting.record, live.drafting.verifies_all
        if record is None:
            return StepCandidate(len(plan.feed), plan.tree, (), verifies_all=True)
        if not (self.has_time or verifies_all):
            return StepCandidate(len(plan.feed), NO_DRAFT, ())
        try:
            return StepCandidate(len(plan.feed), plan.tree, record.survival(plan.tree), verifies_all)
        except Exception as error:  # noqa: BLE001 (as above)
            self._losses.lose(live, error)
            return None
