"""The engine: steps all sessions that have something to do in one forward. Its loop half owns the sessions, its thread
half runs the target.

State: the sessions that wait (in the schedule). Invariants: one forward at a time, and the next is planned once the
last has given its verdicts, so that drafts which arrived meanwhile count. An error in a step ends only the sessions
that fail again by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog
from moa_shared.errors import InternalError, MoaError
from moa_shared.protocol.finish_rule import Finish

from moa_server.drafting.running_cost import RunningCost
from moa_server.engine.forward_planner import ForwardPlanner, Part
from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.live_session import LiveSession
from moa_server.engine.observer import AnswerStep, Observer
from moa_server.engine.prefixes.page_store import PagesNotKept
from moa_server.engine.prefixes.sharing import Adoption, FilledPages, PrefixSharing
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.server_drafts import ServerDrafts, TimePrice
from moa_server.engine.stepper import CodedRows, MemorySource, Outcome, Stepper
from moa_server.memory.feed import Chunk, MemoryFeed
from moa_server.memory.row_store import KeptPlane
from moa_server.session.session import Phase
from moa_server.session.verification import StepPlan, Verification

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a forward gave one session.

    Args:
        outcome: what the target chose; None: a chunk of a prompt was read; or why it failed.
        coded: rows that leave with the verdict.
    """

    part: Part
    outcome: Outcome
    coded: Sequence[CodedRows] = ()


class Engine:
    """Steps sessions together.

    Args:
        stepper: runs on the inference thread.
        schedule: decides what each forward does; None: one that has measured nothing yet.
        on_lost: called with each session that an error ended.
        before: called once on the inference thread.
        sharing: which text sessions need not read, because another has; None: they share nothing.
        observer: learns what happens; None: nobody does.
    """

    def __init__(
        self,
        stepper: Stepper,
        on_lost: Callable[[LiveSession], None],
        before: Callable[[], None] = lambda: None,
        schedule: Schedule[LiveSession] | None = None,
        sharing: PrefixSharing | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.stepper = stepper
        self._schedule = schedule or Schedule()
        self._sharing = sharing
        self._on_lost = on_lost
        self._observer = observer or Observer()
        self._thread = InferenceThread(before)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False
        self._short_of_time: set[LiveSession] = set()  # whose memory waits for idle time
        self._server_drafts = ServerDrafts()
        self._least_chance = 0.0  # that a draft node must have to be worth verifying, as of the newest forward
        self._planner = ForwardPlanner(self._schedule, self.adopt, self._lose)

    def start(self) -> None:
        """Starts the inference thread; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def busy_seconds(self) -> float:
        """How long the inference thread's current job has been running."""
        return self._thread.busy_seconds

    @property
    def told_cost(self) -> RunningCost:
        """How long a plain step and each further row take, as clients are told."""
        return self._schedule.told_cost

    @property
    def read_ms(self) -> float:
        """How long a token of a prompt takes to read; 0: not known."""
        return self._schedule.read_ms

    async def stop(self) -> None:
        """Drops what is queued and gives the running forward some time to end."""
        self._schedule.clear()
        await asyncio.to_thread(self._thread.stop)

    # ------------------------------------------------------------ on the event loop

    def wake(self, live: LiveSession) -> None:
        """Marks a session as changed: it steps when its turn comes, if there is something to do."""
        self._queue(live)
        self._dispatch()

    def _queue(self, live: LiveSession) -> None:
        if not (live.closed or live.queued or live.stepping):
            live.queued, live.queued_at = True, time.monotonic()
            self._schedule.add(live)

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

    def keep_rows(self, live: LiveSession, source: MemorySource | None, widths: Mapping[KeptPlane, int]) -> None:
        """Keeps rows of these planes; what was read without keeping its state is read again."""
        if source is None:
            return  # the next client may want them again
        before: Mapping[KeptPlane, int] = live.widths if live.source is source else {}
        added = [plane for plane in widths if plane not in before]
        live.source, live.widths = source, {**before, **widths}
        if any(self.stepper.made_by_forward(source, plane) for plane in added):
            live.session.forget_cache(0)
        live.drafter_knows = 0
        if added:
            keep = partial(live.tensors.keep_rows, source, live.widths)
            self._thread.submit(partial(self._or_lose, live, keep), urgent=True)

    def release(self, live: LiveSession) -> None:
        """Frees the keys and values of an idle session: at its next answer it reads its text again."""
        live.session.forget_cache(0)
        live.drafter_knows = 0
        if live.feed is not None:
            live.feed.on_released()
        self._thread.submit(partial(self._or_lose, live, live.tensors.release), urgent=True)

    def free(self, live: LiveSession) -> None:
        """Gives back what an ended session holds, after its forward if there is one."""
        self._thread.submit(live.tensors.release)

    def adopt(self, live: LiveSession) -> bool:
        """Begins to take over kept pages of the text that a session would read; False if there are none.

        It counts as stepping until that is done.
        """
        if self._sharing is None or (adoption := self._sharing.begin(live)) is None:
            return False
        live.stepping = True
        self._thread.submit(partial(self._take_over, self._sharing, adoption), urgent=True)
        return True

    def drop_pages(self, numbers: Sequence[int]) -> None:
        """Frees shared pages that nobody holds."""
        if self._sharing is not None:
            self._thread.submit(partial(self._sharing.drop, numbers), urgent=True)

    def _dispatch(self) -> None:
        """Begins the next forward, if none runs and there is something to do."""
        if self._busy:
            return
        parts = self._planner.plan()
        if parts:
            self._busy = True
            now = time.monotonic()
            self._observer.on_planned([now - part.live.queued_at for part in parts])
            for part in parts:
                part.live.stepping = True
            price = TimePrice(self._schedule.rate(len(parts)), self._schedule.cost.line())
            self._thread.submit(partial(self._run_or_lose, parts, price))
            return
        waiting, self._short_of_time = self._short_of_time, set()
        for live in waiting:
            if live.listener is not None:
                live.listener.on_spare_time()

    # ------------------------------------------------------------ what a forward has given

    def _on_stepped(self, stepped: Sequence[Stepped], step_ms: float, drafting_ms: float) -> None:
        """A forward has ended.

        Args:
            step_ms: how long it took; `drafting_ms`: how long the server drafted before it.
        """
        self._busy = False
        verified = [
            (each.part.plan, each.outcome)
            for each in stepped
            if not each.part.reads and isinstance(each.outcome, Verification)
        ]
        rows = Rows(
            len(verified),
            sum(len(plan.feed) for plan, _ in verified),
            sum(len(plan.tree) for plan, _ in verified),
            sum(each.part.rows for each in stepped if each.part.reads),
        )
        self._least_chance = self._schedule.least_chance(rows.answers)
        for each in stepped:
            each.part.live.stepping = False
            each.part.live.steps += 1
            try:
                self._on_outcome(each, rows, step_ms)
            except Exception as error:  # noqa: BLE001 (as above)
                self._lose(each.part.live, error)
        tokens = sum(len(verification.taken) for _, verification in verified)
        self._schedule.on_forward(rows, step_ms, tokens, drafting_ms)
        self._observer.on_forward(rows, step_ms, drafting_ms)
        for each in stepped:
            self._queue(each.part.live)
        self._dispatch()

    def _on_outcome(self, stepped: Stepped, rows: Rows, step_ms: float) -> None:
        """Takes in what a forward gave one session."""
        live, plan, coding = stepped.part.live, stepped.part.plan, stepped.part.coding
        outcome = stepped.outcome
        if isinstance(outcome, Exception):
            raise outcome
        if live.trace is not None:
            live.trace.on_step(step_ms, chose=outcome is not None)
        if outcome is None:
            if live.session.on_prefilled(plan):
                self._keep_pages(live)
            _pay(live, len(plan.feed), 0)
            return
        self._commit(stepped.part, outcome, rows, step_ms)
        ended = outcome.finish is not Finish.UNFINISHED
        if live.feed is not None and (ended or not coding.gives_rows(live.feed)):
            live.feed.rows_ready(live.session.cached)
        for newest in stepped.coded:
            self._on_rows(live, coding.feed, newest, 0.0)
        _pay(live, len(plan.feed) - 1, len(outcome.taken))

    def _commit(self, part: Part, verification: Verification, rows: Rows, step_ms: float) -> None:
        live, plan, session, schedule = part.live, part.plan, part.live.session, self._schedule
        arrived = session.arrived_draft()
        if not session.on_verified(plan, verification):
            return
        live.usage.on_written(len(verification.taken), verification.finish)
        if live.trace is not None:
            live.trace.on_written(len(verification.taken), len(plan.tree), verification.accepted)
            if verification.finish is not Finish.UNFINISHED:
                live.end_trace(verification.finish.name.lower())
        self._keep_pages(live)
        if live.drafts is not None and len(plan.feed) == 1:  # others read a prompt too
            blind = live.feed is not None and live.feed.owes(session.answer_start)
            live.drafts.learn(arrived, verification.taken, blind=blind)
            if schedule.cost.known:
                share_ms = schedule.answers_ms(rows, step_ms) * part.rows / max(1, rows.fed + rows.nodes)
                plain_ms = schedule.cost.ms(max(1, rows.answers) - 1) / max(1, rows.answers)
                live.budget.on_step(share_ms, len(verification.taken), plain_ms)
        stale = session.pending.take_stale() if live.listener is not None else 0
        self._observer.on_step(_answer_step(live, plan, verification, stale))
        if verification.finish is not Finish.UNFINISHED:
            self._observer.on_finish(verification.finish)
        if live.listener is None:
            return
        least_chance = 0.0 if live.verifies_all else self._least_chance
        verdict = session.verdict(plan, verification, stale=stale, step_ms=step_ms, least_chance=least_chance)
        live.listener.on_verdict(verdict)

    def _keep_pages(self, live: LiveSession) -> None:
        """Keeps the pages that a forward has filled, before the session's next one."""
        if self._sharing is not None and not live.closed and (filled := self._sharing.on_read(live)) is not None:
            self._thread.submit(partial(self._keep, self._sharing, filled), urgent=True)

    def _on_adopted(self, adoption: Adoption) -> None:
        live, before = adoption.live, adoption.cached
        live.stepping = False
        if not live.closed and adoption.commit():
            log.info("prefix shared", session=live.number, tokens=adoption.tokens, more=adoption.tokens - before)
        self._queue(live)
        self._dispatch()

    def _on_not_kept(self, sharing: PrefixSharing, pages: FilledPages | Adoption) -> None:
        """Shared pages could not be kept or given: no session may take them over, and one that was about to reads."""
        sharing.discard(pages)
        if isinstance(pages, Adoption):
            pages.live.stepping = False
            self._queue(pages.live)
            self._dispatch()

    def _on_forward_failed(self, parts: Sequence[Part], error: Exception) -> None:
        """A forward has ended with no outcome for anyone."""
        self._busy = False
        for part in parts:
            part.live.stepping = False
            self._lose(part.live, error)
        self._dispatch()

    def _on_rows(self, live: LiveSession, feed: MemoryFeed | None, newest: CodedRows, took_ms: float) -> None:
        if live.feed is None or live.feed is not feed or live.listener is None:
            return
        if live.feed.is_encoded(newest.chunk.plane):
            live.budget.on_encoded(took_ms)
        stop = newest.chunk.start + newest.chunk.count
        if stop <= live.session.cached:  # a void forward's rows are not the session's
            live.feed.rows_ready(stop)
            live.listener.on_rows(newest)

    def _lose(self, live: LiveSession, error: Exception) -> None:
        if live.closed:
            return
        live.closed = True
        self._observer.on_lost()
        log.error("session failed", session=live.number, exc_info=error)
        live.end_trace("failed", type(error).__name__)
        if live.listener is not None:
            live.listener.on_failure(_reported(error))
        self._on_lost(live)

    # ------------------------------------------------------------ on the inference thread

    def _take_over(self, sharing: PrefixSharing, adoption: Adoption) -> None:
        try:
            sharing.take_over(adoption)
        except PagesNotKept as error:
            log.error("shared pages are missing: they are read again", session=adoption.live.number, exc_info=error)
            self._post(self._on_not_kept, sharing, adoption)
        except Exception as error:  # noqa: BLE001 (as above)
            self._post(self._lose, adoption.live, error)
            self._post(self._on_not_kept, sharing, adoption)
        else:
            self._post(self._on_adopted, adoption)

    def _keep(self, sharing: PrefixSharing, filled: FilledPages) -> None:
        try:
            sharing.keep(filled)
        except Exception as error:  # noqa: BLE001 (as above)
            self._post(self._on_not_kept, sharing, filled)
            self._post(self._lose, filled.live, error)

    def _or_lose(self, live: LiveSession, job: Callable[[], None]) -> None:
        """Runs a job; if it fails, its session is lost."""
        try:
            job()
        except Exception as error:  # noqa: BLE001 (as above)
            self._post(self._lose, live, error)

    def _run_or_lose(self, parts: Sequence[Part], price: TimePrice) -> None:
        """Runs a forward; if it fails as a whole, its sessions are lost."""
        try:
            self._run(parts, price)
        except Exception as error:  # noqa: BLE001 (as above)
            self._post(self._on_forward_failed, parts, error)

    def _run(self, parts: Sequence[Part], price: TimePrice) -> None:
        orders = [(part.live.tensors, part.plan, part.order) for part in parts]
        plans, drafting_ms = self._server_drafts.extend(orders, price)
        parts = [replace(part, plan=plan) for part, plan in zip(parts, plans, strict=True)]
        began = time.perf_counter()
        outcomes = self.stepper.verify_all([(part.live.tensors, part.plan) for part in parts])
        step_ms = _ms_since(began)
        self._server_drafts.learn(orders, outcomes)
        stepped = self._code_at_once(parts, outcomes)
        self._post(self._on_stepped, stepped, step_ms, drafting_ms)
        # Rows of a prompt wait until its first token is out.
        later = [
            (each.part, newest)
            for each in stepped
            if isinstance(each.outcome, Verification)
            for newest in each.part.coding.after
        ]
        if not later:
            return
        began = time.perf_counter()
        coded = self.stepper.code_newest([(part.live.tensors, newest) for part, newest in later])
        took_ms = _ms_since(began) / len(later)
        for (part, _), each in zip(later, coded, strict=True):
            if isinstance(each, Exception):
                self._post(self._lose, part.live, each)
            else:
                self._post(self._on_rows, part.live, part.coding.feed, each, took_ms)

    def _code_at_once(self, parts: Sequence[Part], outcomes: Sequence[Outcome]) -> list[Stepped]:
        """Codes what leaves with the verdicts."""
        leaving = [
            part.coding.at_once if isinstance(outcome, Verification) else ()
            for part, outcome in zip(parts, outcomes, strict=True)
        ]
        wanted = [(part.live.tensors, newest) for part, rows in zip(parts, leaving, strict=True) for newest in rows]
        coded = iter(self.stepper.code_newest(wanted) if wanted else ())
        stepped = []
        for part, outcome, rows in zip(parts, outcomes, leaving, strict=True):
            own = [next(coded) for _ in rows]
            failed = next((each for each in own if isinstance(each, Exception)), None)
            stepped.append(Stepped(part, failed or outcome, [each for each in own if isinstance(each, CodedRows)]))
        return stepped

    def _post(self, callback: Callable[..., None], *args: object, **named: object) -> None:
        if self._loop is None:
            raise InternalError("The engine ran a job before it was started.")
        self._loop.call_soon_threadsafe(partial(callback, *args, **named))


def _ms_since(began: float) -> float:
    return 1000.0 * (time.perf_counter() - began)


def _answer_step(live: LiveSession, plan: StepPlan, verification: Verification, stale: int) -> AnswerStep:
    drafted = len(plan.tree) - plan.own_nodes
    return AnswerStep(
        tokens=len(verification.taken),
        drafted=drafted,
        accepted=verification.accepted - verification.own_accepted,
        own_drafted=plan.own_nodes,
        own_accepted=verification.own_accepted,
        stale=stale,
        runs_ahead=live.drafts is not None and live.takes_drafts and not drafted,
    )


def _pay(live: LiveSession, read: int, written: int) -> None:
    """Counts what a forward has computed for a session, void or not; holds the answer if that was the last of it."""
    meter = live.meter
    if meter is None or live.closed:
        return
    meter.read(read)
    meter.write(written)
    if live.session.phase is not Phase.ANSWERING:
        meter.end()
    elif written and (refusal := meter.refusal()) is not None:
        live.held = True
        if live.listener is not None:
            live.listener.on_held(refusal)


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
