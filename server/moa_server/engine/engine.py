"""The engine: lets sessions step in turn. Its loop half owns all sessions, its thread half runs the target.

State: the sessions whose turn may have come. Invariants: one forward at a time, and the next is chosen once the last
has given its verdict, so that drafts which arrived meanwhile count. An error in a step ends only that session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from moa_shared.errors import InternalError, MoaError
from moa_shared.protocol.codec import Codec
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.messages import Plane

from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.live_session import LiveSession
from moa_server.engine.stepper import CodedRows, MemorySource, Stepper
from moa_server.engine.turns import Turns
from moa_server.memory.feed import Chunk, MemoryFeed
from moa_server.session.session import StepPlan, Verification

log = structlog.get_logger()

NewestRows = tuple[Plane, int, Codec, int]  # plane, first position, codec, most rows


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
# A row that leaves with each verdict takes a tenth of a plain step of the default target on one core: coding, larger
# frames. So where no guess was right for some steps, rows go several at a time.
PATIENT_STEPS = 4
ROWS_TOGETHER = 8


class Engine:
    """Steps sessions in turn.

    Args:
        stepper: runs on the inference thread.
        on_lost: called with each session that an error ended.
        before: called once on the inference thread.
    """

    def __init__(
        self, stepper: Stepper, on_lost: Callable[[LiveSession], None], before: Callable[[], None] = lambda: None
    ) -> None:
        self.stepper = stepper
        self._on_lost = on_lost
        self._thread = InferenceThread(before)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = Turns()
        self._busy = False
        self._short_of_time: set[LiveSession] = set()  # whose memory waits for idle time

    def start(self) -> None:
        """Starts the inference thread; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def busy_seconds(self) -> float:
        """How long the inference thread's current job has been running."""
        return self._thread.busy_seconds

    async def stop(self) -> None:
        """Drops what is queued and gives the running forward some time to end."""
        self._turns.clear()
        await asyncio.to_thread(self._thread.stop)

    # ------------------------------------------------------------ on the event loop

    def wake(self, live: LiveSession) -> None:
        """Marks a session as changed: it steps when its turn comes, if there is something to do."""
        if live.closed or live.queued or live.stepping:
            return
        live.queued = True
        self._turns.add(live)
        self._dispatch()

    def code(self, live: LiveSession, chunk: Chunk) -> asyncio.Future[CodedRows]:
        """Codes a chunk's rows to bytes, between forwards."""
        future: asyncio.Future[CodedRows] = asyncio.get_running_loop().create_future()
        costs = self._busy and live.feed is not None and live.feed.is_encoded(chunk.plane)
        tensors, budget = live.tensors, live.budget if costs else None

        def job() -> None:
            began = time.perf_counter()
            try:
                coded = self.stepper.code(tensors, chunk)
            except Exception as error:  # noqa: BLE001 (whatever the target raises ends only this session)
                self._post(_fail, future, error)
            else:
                self._post(_give, future, coded)
            if budget is not None:
                self._post(budget.on_encoded, _ms_since(began))

        ticket = self._thread.submit(job, urgent=True)
        future.add_done_callback(lambda done: self._thread.withdraw(ticket) if done.cancelled() else None)
        return future

    def may_code(self, live: LiveSession) -> bool:
        """Whether there is time to encode older rows; if not, `on_spare_time` is called later."""
        if not self._busy or live.budget.allows_older:
            return True
        self._short_of_time.add(live)
        return False

    def keep_rows(self, live: LiveSession, source: MemorySource | None, widths: Mapping[Plane, int]) -> None:
        """Keeps rows of the planes that a client wants; what was read without keeping its state is read again."""
        if source is None:
            return  # the next client may want them again
        before: Mapping[Plane, int] = live.widths if live.source is source else {}
        added = [plane for plane in widths if plane not in before]
        live.source, live.widths = source, {**before, **widths}
        if any(self.stepper.made_by_forward(source, plane) for plane in added):
            live.session.forget_cache(0)
        if added:
            self._thread.submit(partial(live.tensors.keep_rows, source, live.widths), urgent=True)

    def release(self, live: LiveSession) -> None:
        """Frees the keys and values of an idle session: at its next answer it reads its text again."""
        live.session.forget_cache(0)
        if live.feed is not None:
            live.feed.on_released()
        self._thread.submit(live.tensors.release, urgent=True)

    def _dispatch(self) -> None:
        while not self._busy and (live := self._turns.next()) is not None:
            live.queued = False
            plan = self._plan_step(live)
            if plan is not None:
                live.stepping = self._busy = True
                self._thread.submit(partial(self._run, live, plan, _newest_coding(live, plan)))
        if not self._busy:
            waiting, self._short_of_time = self._short_of_time, set()
            for live in waiting:
                if live.listener is not None:
                    live.listener.on_spare_time()

    def _plan_step(self, live: LiveSession) -> StepPlan | None:
        if live.closed or (live.listener is None and live.session.unread > 1):
            return None  # nobody is waiting for this prompt: it is read when somebody does
        try:
            choose = live.choice.choose if live.choice is not None and not live.verifies_all else None
            return live.session.plan_step(choose)
        except Exception as error:  # noqa: BLE001 (a defect in one session must not stop the others)
            self._lose(live, error)
            return None

    def _on_chosen(
        self,
        live: LiveSession,
        plan: StepPlan,
        verification: Verification | None,
        step_ms: float,
        coded: Sequence[CodedRows],
        *,
        coding: Coding,
    ) -> None:
        self._busy = live.stepping = False
        live.steps += 1
        try:
            if verification is None:
                live.session.on_prefilled(plan)
            else:
                self._commit(live, plan, verification, step_ms)
                ended = verification.finish is not Finish.UNFINISHED
                if live.feed is not None and (ended or not coding.gives_rows(live.feed)):
                    live.feed.rows_ready(live.session.cached)
                for newest in coded:
                    self._on_rows(live, coding.feed, newest, 0.0)
        except Exception as error:  # noqa: BLE001 (as above)
            self._lose(live, error)
        self.wake(live)
        self._dispatch()

    def _commit(self, live: LiveSession, plan: StepPlan, verification: Verification, step_ms: float) -> None:
        session = live.session
        arrived = session.arrived_draft()
        if not session.on_verified(plan, verification):
            return
        if live.choice is not None and len(plan.feed) == 1:  # others read a prompt too
            blind = live.feed is not None and live.feed.owes(session.answer_start)
            live.choice.on_step(step_ms, len(plan.tree), arrived, verification.taken, blind=blind)
            if live.choice.cost.known:
                live.budget.on_step(step_ms, len(verification.taken), live.choice.cost.plain_ms)
        if live.listener is None:
            return
        stale = session.pending.take_stale()
        live.listener.on_verdict(session.verdict(plan, verification, stale=stale, step_ms=step_ms))

    def _on_rows(self, live: LiveSession, feed: MemoryFeed | None, newest: CodedRows, took_ms: float) -> None:
        if live.feed is None or live.feed is not feed or live.listener is None:
            return
        if live.feed.is_encoded(newest.chunk.plane):
            live.budget.on_encoded(took_ms)
        stop = newest.chunk.start + newest.chunk.count
        if stop <= live.session.cached:  # a void forward's rows are not the session's
            live.feed.rows_ready(stop)
            live.listener.on_rows(newest)

    def _on_failed(self, live: LiveSession, error: Exception, *, stepped: bool) -> None:
        if stepped:
            self._busy = live.stepping = False
        self._lose(live, error)
        self._dispatch()

    def _lose(self, live: LiveSession, error: Exception) -> None:
        if live.closed:
            return
        live.closed = True
        log.error("session failed", session=live.number, exc_info=error)
        if live.listener is not None:
            live.listener.on_failure(_reported(error))
        self._on_lost(live)

    # ------------------------------------------------------------ on the inference thread

    def _run(self, live: LiveSession, plan: StepPlan, coding: Coding) -> None:
        began = time.perf_counter()
        try:
            verification = self.stepper.verify(live.tensors, plan)
        except Exception as error:  # noqa: BLE001 (whatever the target raises ends only this session)
            self._post(self._on_failed, live, error, stepped=True)
            return
        step_ms = _ms_since(began)
        if verification is None:
            coding = NO_CODING  # rows of a prompt wait until its first token is out
        try:
            coded = [self.stepper.code_newest(live.tensors, *each) for each in coding.at_once]
        except Exception as error:  # noqa: BLE001 (as above)
            self._post(self._on_failed, live, error, stepped=True)
            return
        self._post(self._on_chosen, live, plan, verification, step_ms, coded, coding=coding)
        for each in coding.after:
            began = time.perf_counter()
            try:
                newest = self.stepper.code_newest(live.tensors, *each)
            except Exception as error:  # noqa: BLE001 (as above)
                self._post(self._on_failed, live, error, stepped=False)
            else:
                self._post(self._on_rows, live, coding.feed, newest, _ms_since(began))

    def _post(self, callback: Callable[..., None], *args: object, **named: object) -> None:
        if self._loop is None:
            raise InternalError("The engine ran a job before it was started.")
        self._loop.call_soon_threadsafe(partial(callback, *args, **named))


def _newest_coding(live: LiveSession, plan: StepPlan) -> Coding:
    """Which rows of this step to code without being asked."""
    feed = live.feed
    if feed is None:
        return NO_CODING
    left = [plane for plane in feed.planes if not feed.is_encoded(plane)]
    fruitless = live.choice.fruitless_steps if live.choice is not None else 0
    if left and fruitless >= PATIENT_STEPS and fruitless % ROWS_TOGETHER:
        return Coding((), (), postponed=True, feed=feed)
    after = [plane for plane in feed.planes if feed.is_encoded(plane) and live.budget.allows_newest]
    return Coding(
        tuple((plane, feed.ready(plane), feed.codec, feed.most_rows(plane)) for plane in left),
        tuple((plane, feed.unsent_before(plane, plan.cached), feed.codec, feed.most_rows(plane)) for plane in after),
        feed=feed,
    )


def _ms_since(began: float) -> float:
    return 1000.0 * (time.perf_counter() - began)


def _reported(error: Exception) -> MoaError:
    """The error that the client sees; details stay in the log."""
    if isinstance(error, MoaError):
        return error
    told = InternalError(f"The server failed in this session ({type(error).__name__}).")
    told.__cause__ = error
    return told


def _give(future: asyncio.Future[CodedRows], coded: CodedRows) -> None:
    if not future.done():
        future.set_result(coded)


def _fail(future: asyncio.Future[CodedRows], error: Exception) -> None:
    if not future.done():
        future.set_exception(_reported(error))
