"""The engine: steps all sessions that have something to do in one forward, again and again.

It plans and commits on the event loop, and runs the target on the inference thread.

State: whether a forward is under way; the schedule has the sessions that wait. Invariants: one forward at a time, and
the next is planned once the last is committed, so that drafts which arrived meanwhile count. An error in a step ends
only the sessions that fail again by themselves.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from moa_shared.programs.machine import ms_since

from moa_server.drafting.forward_cost import RunningCost
from moa_server.engine.committer import Committer, ForwardFacts, RowCoder
from moa_server.engine.forward_planner import ForwardPart, ForwardPlanner, SlowForms
from moa_server.engine.inference_thread import InferenceThread, RunningJob, SessionJobs, SessionLosses
from moa_server.engine.live_session import LiveSession
from moa_server.engine.observer import Observer
from moa_server.engine.page_sharing import PageMoves, PrefixSharing
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.server_drafts import ServerDrafts, TimePrice
from moa_server.engine.stepper import CodedRows, MemorySource, Stepper
from moa_server.session.memory_feed import Chunk, KeptPlane
from moa_server.session.verification import Verification

T = TypeVar("T")


class Engine:
    """Steps sessions together.

    Args:
        thread: where models run; None: one of its own.
        schedule: decides what each forward does; None: one that has measured nothing yet.
        sharing: which text sessions need not read, because another has; None: they share nothing.
    """

    def __init__(
        self,
        stepper: Stepper,
        on_lost: Callable[[LiveSession], None],
        thread: InferenceThread | None = None,
        schedule: Schedule[LiveSession] | None = None,
        sharing: PrefixSharing | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.stepper = stepper
        self._observer = observer or Observer()
        self._schedule = schedule or Schedule()
        self._losses = SessionLosses(on_lost, self._observer)
        self._thread = thread or InferenceThread()
        self._jobs = SessionJobs(self._thread, self._losses)
        self._coder = RowCoder(stepper, self._jobs)
        self.pages = PageMoves(sharing, self._jobs, self.wake)
        self._planner = ForwardPlanner(self._schedule, self.pages, SlowForms(self._jobs, self.wake), self._losses)
        self._server_drafts = ServerDrafts()
        self._committer = Committer(self.pages, self._coder, self._observer)
        self._busy = False

    def start(self) -> None:
        self._jobs.start()

    async def stop(self) -> None:
        self._schedule.clear()
        await asyncio.to_thread(self._thread.stop)

    # ------------------------------------------------------------ what it takes

    @property
    def running(self) -> RunningJob | None:
        return self._thread.running

    @property
    def told_cost(self) -> RunningCost:
        return self._schedule.told_cost

    @property
    def read_ms(self) -> float:
        return self._schedule.read_ms

    # ------------------------------------------------------------ a forward: wake, plan, run, commit

    def wake(self, live: LiveSession) -> None:
        """Marks a session as changed: it steps when its turn comes, if there is something to do."""
        self._queue(live)
        self._plan()

    def _queue(self, live: LiveSession) -> None:
        if not (live.closed or live.turn.queued or live.turn.stepping):
            live.turn.queue(time.monotonic())
            self._schedule.add(live)

    def _plan(self) -> None:
        """Plans the next forward and has it run, unless one is under way or there is nothing to do."""
        if self._busy:
            return
        parts = self._planner.plan()
        if not parts:
            self._coder.on_spare_time()
            return
        self._busy = True
        now = time.monotonic()
        self._observer.on_planned([now - part.live.turn.queued_at for part in parts])
        for part in parts:
            part.live.turn.stepping = True
        price = TimePrice(self._schedule.draft_price(len(parts)), self._schedule.cost.line())
        self._thread.submit(partial(self._run_forward, parts, price))

    def _run_forward(self, parts: Sequence[ForwardPart], price: TimePrice) -> None:
        try:
            drafting_ms = self._server_drafts.deepen(parts, price)
            began = time.perf_counter()
            outcomes = self.stepper.verify_all(parts)
            step_ms = ms_since(began)
            for part, outcome in zip(parts, outcomes, strict=True):
                part.outcome = outcome
            self._server_drafts.learn_from(parts)
            self._coder.code_at_once(parts)
        except Exception as error:  # noqa: BLE001 (whatever it is ends only these sessions)
            self._jobs.post(partial(self._give_up, parts, error))
            return
        self._jobs.post(partial(self._commit, parts, step_ms, drafting_ms))
        self._coder.code_after(parts)

    def _commit(self, parts: Sequence[ForwardPart], step_ms: float, drafting_ms: float) -> None:
        """Commits what a forward gave, and plans the next one.

        `step_ms`: how long it took; `drafting_ms`: how long the server drafted before it.
        """
        self._busy = False
        rows, tokens = _rows_of(parts)
        forward = ForwardFacts.of(rows, step_ms, self._schedule)
        for part in parts:
            part.live.turn.stepping = False
            part.live.turn.steps += 1
            try:
                self._committer.commit_part(part, forward)
            except Exception as error:  # noqa: BLE001 (as above)
                self._losses.lose(part.live, error)
        self._schedule.on_forward(rows, step_ms, tokens, drafting_ms)
        self._observer.on_forward(rows, step_ms, drafting_ms)
        for part in parts:
            self._queue(part.live)
        self._plan()

    def _give_up(self, parts: Sequence[ForwardPart], error: Exception) -> None:
        self._busy = False
        for part in parts:
            part.live.turn.stepping = False
            self._losses.lose(part.live, error)
        self._plan()

    def between_forwards(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return self._jobs.result_of(job, urgent=False)

    # ------------------------------------------------------------ rows and caches

    def code(self, live: LiveSession, chunk: Chunk) -> asyncio.Future[CodedRows]:
        return self._coder.code(live, chunk, busy=self._busy)

    def may_code(self, live: LiveSession) -> bool:
        """Whether there is time to encode older rows; if not, `on_spare_time` is called later."""
        return self._coder.may_code(live, busy=self._busy, has_time=self._planner.has_time)

    def keep_rows(self, live: LiveSession, source: MemorySource, widths: Mapping[KeptPlane, int]) -> None:
        """Keeps rows of these planes; what was read without keeping its state is read again."""
        added = live.drafting.keep(source, widths)
        if any(self.stepper.made_by_forward(source, plane) for plane in added):
            live.session.forget_cache(0)
        if added:
            self._jobs.run_for(live, partial(live.tensors.keep_rows, source, live.drafting.widths))

    def release(self, live: LiveSession) -> None:
        """Frees the keys and values of an idle session: at its next answer it reads its text again."""
        live.session.forget_cache(0)
        live.drafting.forget()
        if live.stream.feed is not None:
            live.stream.feed.on_released()
        self._jobs.run_for(live, live.tensors.release)

    def free(self, live: LiveSession) -> None:
        self._thread.submit(live.tensors.release)


def _rows_of(parts: Sequence[ForwardPart]) -> tuple[Rows, int]:
    answers = [(part, part.outcome) for part in parts if not part.reads and isinstance(part.outcome, Verification)]
    rows = Rows(
        len(answers),
        sum(len(part.plan.feed) for part, _ in answers),
        sum(len(part.plan.tree) for part, _ in answers),
        sum(part.rows for part in parts if part.reads),
    )
    return rows, sum(len(verification.taken) for _, verification in answers)
