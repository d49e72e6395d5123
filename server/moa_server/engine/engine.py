"""The engine: lets sessions step in turn. Its loop half owns all sessions, its thread half runs the target.

State: the sessions whose turn may have come. Invariants: one forward at a time, and the next one is chosen when the one
before has given its verdict, so that drafts which arrived meanwhile count. An error in a step ends that session alone.
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
from moa_shared.protocol.messages import Plane, Verdict

from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.live_session import Slot
from moa_server.engine.stepper import CodedRows, MemorySource, Stepper
from moa_server.engine.turns import Turns
from moa_server.memory.feed import Chunk, MemoryFeed
from moa_server.session.session import Judgement, Work

log = structlog.get_logger()

NewestRows = tuple[Plane, int, Codec, int]  # of a plane, from a position on, in which codec, at most how many


@dataclass(frozen=True, slots=True)
class Coding:
    """Rows to be coded with a forward.

    Args:
        at_once: before its verdict goes out, 0.1 ms: they leave with it, which spares the client a wait of several ms
            where loop and model share a core.
        after: those that take time.
        postponed: the rows of this step are left to a later one.
        feed: that the rows are for; another stream may have taken the session over when they are there.
    """

    at_once: tuple[NewestRows, ...]
    after: tuple[NewestRows, ...]
    postponed: bool = False
    feed: MemoryFeed | None = None

    def gives_rows(self, feed: MemoryFeed) -> bool:
        """Whether rows for this feed come of it, now or later."""
        return self.feed is feed and bool(self.at_once or self.after or self.postponed)


NO_CODING = Coding((), ())
# A row that leaves with each verdict takes a tenth of a plain step of the default target on one core: coding, larger
# frames. So where no guess was right for some steps, rows go several at a time.
PATIENT_STEPS = 4
ROWS_TOGETHER = 8


class Engine:
    """Steps sessions.

    Args:
        stepper: runs on the inference thread.
        on_lost: told of a session that an error ended.
        before: called once on the inference thread.
    """

    def __init__(
        self, stepper: Stepper, on_lost: Callable[[Slot], None], before: Callable[[], None] = lambda: None
    ) -> None:
        self.stepper = stepper
        self._on_lost = on_lost
        self._thread = InferenceThread(before)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = Turns()
        self._busy = False
        self._short_of_time: set[Slot] = set()  # whose memory waits for idle time

    def start(self) -> None:
        """Starts the inference thread; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def busy_seconds(self) -> float:
        """How long the inference thread has been at what it does now."""
        return self._thread.busy_seconds

    async def stop(self) -> None:
        """Drops what waits, and gives the forward that runs some time to end."""
        self._turns.clear()
        await asyncio.to_thread(self._thread.stop)

    # ------------------------------------------------------------ on the event loop

    def wake(self, slot: Slot) -> None:
        """Something has changed for this session: it steps when its turn comes, if there is something to do."""
        if slot.closed or slot.queued or slot.stepping:
            return
        slot.queued = True
        self._turns.add(slot)
        self._dispatch()

    def code(self, slot: Slot, chunk: Chunk) -> asyncio.Future[CodedRows]:
        """Rows of a chunk as bytes, made between forwards."""
        future: asyncio.Future[CodedRows] = asyncio.get_running_loop().create_future()
        costs = self._busy and slot.feed is not None and slot.feed.is_encoded(chunk.plane)
        holdings, budget = slot.holdings, slot.budget if costs else None

        def job() -> None:
            began = time.perf_counter()
            try:
                coded = self.stepper.code(holdings, chunk)
            except Exception as error:  # noqa: BLE001 (whatever the target raises ends this session alone)
                self._post(_fail, future, error)
            else:
                self._post(_give, future, coded)
            if budget is not None:
                self._post(budget.on_encoded, _ms_since(began))

        ticket = self._thread.submit(job, urgent=True)
        future.add_done_callback(lambda done: self._thread.withdraw(ticket) if done.cancelled() else None)
        return future

    def may_code(self, slot: Slot) -> bool:
        """Whether there is time to encode older rows; if not, `on_spare_time` tells when."""
        if not self._busy or slot.budget.allows_older:
            return True
        self._short_of_time.add(slot)
        return False

    def keep_rows(self, slot: Slot, source: MemorySource | None, widths: Mapping[Plane, int]) -> None:
        """Keeps rows of the planes that a client wants; what was read without keeping its state is read again."""
        if source is None:
            return  # the next client may want them again
        before: Mapping[Plane, int] = slot.widths if slot.source is source else {}
        added = [plane for plane in widths if plane not in before]
        slot.source, slot.widths = source, {**before, **widths}
        if any(self.stepper.made_by_forward(source, plane) for plane in added):
            slot.session.forget_cache(0)
        if added:
            self._thread.submit(partial(slot.holdings.keep_rows, source, slot.widths), urgent=True)

    def release(self, slot: Slot) -> None:
        """Takes the keys and values of a session that is idle: at its next answer it reads its text anew."""
        slot.session.forget_cache(0)
        if slot.feed is not None:
            slot.feed.on_released()
        self._thread.submit(slot.holdings.release, urgent=True)

    def _dispatch(self) -> None:
        while not self._busy and (slot := self._turns.next()) is not None:
            slot.queued = False
            work = self._next_work(slot)
            if work is not None:
                slot.stepping = self._busy = True
                self._thread.submit(partial(self._run, slot, work, _newest_coding(slot, work)))
        if not self._busy:
            waiting, self._short_of_time = self._short_of_time, set()
            for slot in waiting:
                if slot.listener is not None:
                    slot.listener.on_spare_time()

    def _next_work(self, slot: Slot) -> Work | None:
        if slot.closed or (slot.listener is None and slot.session.unread > 1):
            return None  # nobody waits for this prompt: it is read when somebody does
        try:
            choose = slot.choice.choose if slot.choice is not None and not slot.verifies_all else None
            return slot.session.next_work(choose)
        except Exception as error:  # noqa: BLE001 (a defect in one session must not stop the others)
            self._lose(slot, error)
            return None

    def _on_chosen(
        self,
        slot: Slot,
        work: Work,
        judgement: Judgement | None,
        step_ms: float,
        coded: Sequence[CodedRows],
        *,
        coding: Coding,
    ) -> None:
        self._busy = slot.stepping = False
        slot.steps += 1
        try:
            if judgement is None:
                slot.session.on_prefilled(work)
            else:
                self._commit(slot, work, judgement, step_ms)
                ended = judgement.finish is not Finish.UNFINISHED
                if slot.feed is not None and (ended or not coding.gives_rows(slot.feed)):
                    slot.feed.rows_ready(slot.session.cached)
                for newest in coded:
                    self._on_rows(slot, coding.feed, newest, 0.0)
        except Exception as error:  # noqa: BLE001 (as above)
            self._lose(slot, error)
        self.wake(slot)
        self._dispatch()

    def _commit(self, slot: Slot, work: Work, judgement: Judgement, step_ms: float) -> None:
        session = slot.session
        base, arrived = len(session.tokens), session.arrived_draft()
        if not session.on_judged(work, judgement):
            return
        if slot.choice is not None and len(work.feed) == 1:  # others read a prompt too
            blind = slot.feed is not None and slot.feed.owes(session.answer_start)
            slot.choice.on_step(step_ms, len(work.tree), arrived, judgement.taken, blind=blind)
            if slot.choice.cost.known:
                slot.budget.on_step(step_ms, len(judgement.taken), slot.choice.cost.plain_ms)
        if slot.listener is None:
            return
        slot.listener.on_verdict(
            Verdict(
                session.ask_id,
                session.pending.epoch,
                base,
                session.hashes.at(base),
                judgement.taken,
                judgement.finish,
                judgement.accepted,
                len(work.tree),
                session.pending.take_stale(),
                step_ms,
            )
        )

    def _on_rows(self, slot: Slot, feed: MemoryFeed | None, newest: CodedRows, took_ms: float) -> None:
        if slot.feed is None or slot.feed is not feed or slot.listener is None:
            return
        if slot.feed.is_encoded(newest.chunk.plane):
            slot.budget.on_encoded(took_ms)
        stop = newest.chunk.start + newest.chunk.count
        if stop <= slot.session.cached:  # a void forward's rows are not the session's
            slot.feed.rows_ready(stop)
            slot.listener.on_rows(newest)

    def _on_failed(self, slot: Slot, error: Exception, *, stepped: bool) -> None:
        if stepped:
            self._busy = slot.stepping = False
        self._lose(slot, error)
        self._dispatch()

    def _lose(self, slot: Slot, error: Exception) -> None:
        if slot.closed:
            return
        slot.closed = True
        log.error("session failed", session=slot.number, exc_info=error)
        if slot.listener is not None:
            slot.listener.on_failure(_reported(error))
        self._on_lost(slot)

    # ------------------------------------------------------------ on the inference thread

    def _run(self, slot: Slot, work: Work, coding: Coding) -> None:
        began = time.perf_counter()
        try:
            judgement = self.stepper.choose(slot.holdings, work)
        except Exception as error:  # noqa: BLE001 (whatever the target raises ends this session alone)
            self._post(self._on_failed, slot, error, stepped=True)
            return
        step_ms = _ms_since(began)
        if judgement is None:
            coding = NO_CODING  # rows of a prompt wait until its first token is out
        try:
            coded = [self.stepper.code_newest(slot.holdings, *each) for each in coding.at_once]
        except Exception as error:  # noqa: BLE001 (as above)
            self._post(self._on_failed, slot, error, stepped=True)
            return
        self._post(self._on_chosen, slot, work, judgement, step_ms, coded, coding=coding)
        for each in coding.after:
            began = time.perf_counter()
            try:
                newest = self.stepper.code_newest(slot.holdings, *each)
            except Exception as error:  # noqa: BLE001 (as above)
                self._post(self._on_failed, slot, error, stepped=False)
            else:
                self._post(self._on_rows, slot, coding.feed, newest, _ms_since(began))

    def _post(self, callback: Callable[..., None], *args: object, **named: object) -> None:
        if self._loop is None:
            raise InternalError("The engine ran a job before it was started.")
        self._loop.call_soon_threadsafe(partial(callback, *args, **named))


def _newest_coding(slot: Slot, work: Work) -> Coding:
    """Which rows of this step are to be coded without being asked for."""
    feed = slot.feed
    if feed is None:
        return NO_CODING
    left = [plane for plane in feed.planes if not feed.is_encoded(plane)]
    fruitless = slot.choice.fruitless_steps if slot.choice is not None else 0
    if left and fruitless >= PATIENT_STEPS and fruitless % ROWS_TOGETHER:
        return Coding((), (), postponed=True, feed=feed)
    after = [plane for plane in feed.planes if feed.is_encoded(plane) and slot.budget.allows_newest]
    return Coding(
        tuple((plane, feed.ready(plane), feed.codec, feed.most_rows(plane)) for plane in left),
        tuple((plane, feed.unsent_before(plane, work.cached), feed.codec, feed.most_rows(plane)) for plane in after),
        feed=feed,
    )


def _ms_since(began: float) -> float:
    return 1000.0 * (time.perf_counter() - began)


def _reported(error: Exception) -> MoaError:
    """What the client is told; details stay in the log."""
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
