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
from typing import NamedTuple

from moa_shared.programs.machine import ms_since

from moa_server.drafting.draft_decision import MUCH_TIME
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import LiveSession
from moa_server.engine.schedule import FairQueue, Schedule, StepCandidate
from moa_server.engine.shared_pages import SharedPages
from moa_server.engine.stepper import CodedRows, NewestRows, Work
from moa_server.session.memory_feed import MemoryFeed
from moa_server.session.verification import NO_DRAFT, StepPlan

# A row that leaves with each verdict takes a tenth of a plain step of the default target on one core: coding, larger
# frames. So where no guess was right for some steps, rows go several at a time.
PATIENT_STEPS = 4
ROWS_TOGETHER = 8


class Coding(NamedTuple):
    """Which rows to code with a forward."""

    # Before its verdict goes out, 0.1 ms: they leave with it, which spares the client a wait of several ms where
    # loop and model share a core.
    at_once: Sequence[NewestRows] = ()
    after: Sequence[NewestRows] = ()  # none of both: the rows of this step are left to a later one
    # Which they are for, if any: another stream may have taken over the session by the time they are ready.
    feed: MemoryFeed | None = None


NO_CODING = Coding()


def newest_coding(live: LiveSession, plan: StepPlan) -> Coding:
    """Which rows of this step to code without being asked: none of a thin memory, whose few are asked for."""
    feed, record = live.stream.feed, live.drafting.record
    if feed is None or feed.thin is not None or not feed.has_room:
        return NO_CODING
    fruitless = record.fruitless_steps if record is not None else 0
    if feed.yielded and fruitless >= PATIENT_STEPS and fruitless % ROWS_TOGETHER:
        return Coding(feed=feed)
    at_once = [NewestRows(plane, feed.ready(plane), feed.codec, feed.most_rows(plane)) for plane in feed.yielded]
    after = [
        NewestRows(plane, feed.unsent_before(plane, plan.cached), feed.codec, feed.most_rows(plane))
        for plane in (feed.encoded if live.stream.budget.allows_newest else ())
    ]
    return Coding(at_once, after, feed) if at_once or after else NO_CODING


@dataclass(eq=False, slots=True, kw_only=True)
class ForwardPart(Work):
    """A part of a forward. Owned by the loop until it is submitted, by the thread until it is posted back.

    `reads`: it reads a prompt; `coding`: which rows to code with it; `coded`: those that leave with its verdict.
    """

    live: LiveSession
    coding: Coding
    reads: bool
    coded: list[CodedRows] = field(default_factory=list)


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
    def __init__(
        self, schedule: Schedule[LiveSession], pages: SharedPages, jobs: SessionJobs, slow_forms: SlowForms
    ) -> None:
        self._schedule = schedule
        self._pages = pages
        self._jobs = jobs
        self._slow_forms = slow_forms
        self.has_time = self._has_much_time = True  # for drafts, in the newest forward

    def plan(self) -> list[ForwardPart]:
        self.has_time, self._has_much_time = self._schedule.has_time(), self._schedule.has_time(MUCH_TIME)
        while lives := self._schedule.take_answers():
            if parts := self._plan_answers(lives):
                return parts + self._plan_reading(sum(part.rows for part in parts))
        return self._plan_reading(0)

    def _plan_answers(self, lives: Sequence[LiveSession]) -> list[ForwardPart]:
        offers: list[tuple[LiveSession, StepPlan]] = []
        candidates: list[StepCandidate] = []
        restores = self._has_much_time
        for live in lives:
            # One without a client goes on writing: no prompt is read for it.
            if restores and live.session.stateless_from is not None and live.stream.listener is not None:
                restores = False  # one in a forward: reading all of them at once would take long
                live.read_again(live.session.stateless_from)
                if live.session.reads:
                    self._schedule.add(live)
                    continue
            live.turn.queued = False
            if (plan := self._plan_step(live)) is not None and (offered := self._offer(live, plan)) is not None:
                offers.append((live, plan))
                candidates.append(offered)
        drafts = self.has_time and self._schedule.has_price
        parts = []
        for (live, plan), tree in zip(offers, self._schedule.choose_nodes(candidates), strict=True):
            if (chosen := plan.pick(tree)) is not None:
                part = self._part(live, chosen, reads=not chosen.chooses)  # up to a checkpoint in a short question
                if drafts and part.keeps_states:
                    part.order = live.drafting.order(live.session, chosen)
                parts.append(part)
        return parts

    def _plan_reading(self, rows: int) -> list[ForwardPart]:
        """The prompts to read next to `rows` rows of answers."""
        room = self._schedule.read_tokens(rows)
        parts: list[ForwardPart] = []
        while room > 0 and (live := self._schedule.take_prompt()) is not None:
            live.turn.queued = False
            if self._pages.adopt(live):
                continue
            if (plan := self._plan_step(live, most_read=room)) is not None:
                part = self._part(live, plan, reads=True)
                parts.append(part)
                room -= part.rows
                self._schedule.on_read(live, part.rows)
        return parts

    def _part(self, live: LiveSession, plan: StepPlan, *, reads: bool) -> ForwardPart:
        session, feed = live.session, live.stream.feed
        coding, forced = newest_coding(live, plan), live.drafting.drafts_forced
        if session.stateless_from is None and not self.has_time and live.drafting.can_lack_states:
            # A text that is written meanwhile is read again where its states are wanted, by whoever drafts then.
            is_plain = plan.chooses and len(plan.feed) == 1 and not plan.tree
            if is_plain and (feed is None or not feed.wants_states_from(plan.cached)):
                session.stateless_from = plan.cached
        keeps = session.stateless_from is None
        return ForwardPart(live.tensors, plan, None, forced, keeps, live=live, coding=coding, reads=reads)

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
            self._jobs.lose(live, error)
            return None

    def _offer(self, live: LiveSession, plan: StepPlan) -> StepCandidate | None:
        """What a session offers to a forward: no drafts while there is no time for any."""
        record = live.drafting.record
        if record is None:
            return StepCandidate(len(plan.feed), plan.tree, None)
        if not (self.has_time and plan.tree):
            return StepCandidate(len(plan.feed), NO_DRAFT, ())
        try:
            return StepCandidate(len(plan.feed), plan.tree, record.survival(plan.tree))
        except Exception as error:  # noqa: BLE001 (as above)
            self._jobs.lose(live, error)
            return None
