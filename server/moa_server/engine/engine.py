"""The engine: steps all sessions that have something to do in one forward, again and again.

It plans (`forward_planner.py`) and commits (`committer.py`) on the event loop, and runs the target (`stepper.py`) on
the inference thread.

State: whether a forward is under way; the schedule has the sessions that wait. Invariants: one forward at a time, and
the next is planned once the last is committed, so that drafts which arrived meanwhile count. An error in a step ends
only the sessions that fail again by themselves.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from moa_shared.programs.machine import ms_since

from moa_server.drafting.draft_decision import MemorySource
from moa_server.drafting.forward_cost import CostLine
from moa_server.engine.committer import Committer, RowCoder
from moa_server.engine.forward_planner import ForwardPart, ForwardPlanner, SlowForms
from moa_server.engine.inference_thread import InferenceThread, SessionJobs
from moa_server.engine.live_session import LiveSession, Observer
from moa_server.engine.schedule import Schedule
from moa_server.engine.shared_pages import SharedPages
from moa_server.engine.stepper import ServerDrafts, Stepper
from moa_server.session.memory_feed import KeptPlane


class Engine:
    """Steps sessions together.

    Args:
        thread: where models run; None: one of its own.
        schedule: decides what each forward does; None: one that has measured nothing yet.
        page_tokens, share_all: as of `SharedPages`.
    """

    def __init__(
        self,
        stepper: Stepper,
        on_lost: Callable[[LiveSession], None],
        thread: InferenceThread | None = None,
        schedule: Schedule[LiveSession] | None = None,
        observer: Observer | None = None,
        *,
        page_tokens: int = 0,
        share_all: bool = False,
    ) -> None:
        self.stepper = stepper
        self._observer = observer or Observer()
        self.schedule = schedule or Schedule()
        self.thread = thread or InferenceThread()
        self.jobs = SessionJobs(self.thread, on_lost, self._observer)
        self.coder = RowCoder(stepper, self.jobs)
        self.pages = SharedPages(self.jobs, self.wake, page_tokens, everyone=share_all)
        self._planner = ForwardPlanner(self.schedule, self.pages, self.jobs, SlowForms(self.jobs, self.wake))
        self._server_drafts = ServerDrafts()
        self._committer = Committer(self.schedule, self.pages, self.coder, self.jobs, self._observer)

    def start(self) -> None:
        self.jobs.start()

    async def stop(self) -> None:
        self.schedule.clear()
        await asyncio.to_thread(self.thread.stop)

    # ------------------------------------------------------------ a forward: wake, plan, run, commit

    def wake(self, live: LiveSession) -> None:
        """Marks a session as changed: it steps when its turn comes, if there is something to do."""
        self._queue(live, time.monotonic())
        self._plan()

    def _queue(self, live: LiveSession, now: float) -> None:
        turn = live.turn
        if not (live.closed or turn.queued or turn.stepping):
            turn.queued, turn.queued_at = True, now
            self.schedule.add(live)

    def _plan(self) -> None:
        """Plans the next forward and has it run, unless one is under way or there is nothing to do."""
        if self.coder.busy:
            return
        parts = self._planner.plan()
        if not parts:
            self.coder.on_spare_time()
            return
        self.coder.busy, self.coder.has_time = True, self._planner.has_time
        now = time.monotonic()
        self._observer.on_planned([now - part.live.turn.queued_at for part in parts])
        for part in parts:
            part.live.turn.stepping = True
        price, cost = self.schedule.draft_price(len(parts)), self.schedule.cost.line
        self.thread.submit(partial(self._run_forward, parts, price, cost))

    def _run_forward(self, parts: Sequence[ForwardPart], price: float, cost: CostLine) -> None:
        try:
            drafting_ms = self._server_drafts.deepen(parts, price, cost)
            began = time.perf_counter()
            outcomes = self.stepper.verify_all(parts)
            step_ms = ms_since(began)
            for part, outcome in zip(parts, outcomes, strict=True):
                part.outcome = outcome
            self._server_drafts.learn_from(parts)
            self.coder.code_at_once(parts)
        except Exception as error:  # noqa: BLE001 (whatever it is ends only these sessions)
            self.jobs.post(partial(self._give_up, parts, error))
            return
        self.jobs.post(partial(self._commit, parts, step_ms, drafting_ms))
        self.coder.code_after(parts)

    def _commit(self, parts: Sequence[ForwardPart], step_ms: float, drafting_ms: float) -> None:
        """Commits what a forward gave, and plans the next one."""
        self.coder.busy = False
        self._committer.commit_parts(parts, step_ms, drafting_ms)
        now = time.monotonic()
        for part in parts:
            self._queue(part.live, now)
        self._plan()

    def _give_up(self, parts: Sequence[ForwardPart], error: Exception) -> None:
        self.coder.busy = False
        for part in parts:
            part.live.turn.stepping = False
            self.jobs.lose(part.live, error)
        self._plan()

    # ------------------------------------------------------------ rows and caches

    def keep_rows(self, live: LiveSession, source: MemorySource, widths: Mapping[KeptPlane, int]) -> None:
        """Keeps rows of these planes; what was read without keeping its state is read again."""
        added = live.drafting.keep(source, widths)
        if any(source.layers_of(plane) for plane in added):
            live.session.forget_cache(0)
        if added:
            self.jobs.run_for(live, partial(live.tensors.keep_rows, source, live.drafting.widths))

    def restore_states(self, live: LiveSession) -> None:
        """Called when a device asks for other rows; if it wants states that were not kept, the text is read again."""
        feed, start = live.stream.feed, live.session.stateless_from
        if feed is not None and start is not None and feed.wants_states_from(start):
            live.read_again(start)

    def release(self, live: LiveSession) -> None:
        """Frees the keys and values of an idle session: at its next answer it reads its text again."""
        live.read_again(0)
        live.drafting.forget()
        self.jobs.run_for(live, live.tensors.release)
