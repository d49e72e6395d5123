"""Commits what a forward gave its sessions: to text and account, to what is shared, and to the stream that listens.

State: the sessions whose older memory rows wait for time. Runs on the event loop, except where it says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from moa_shared.programs.machine import ms_since
from moa_shared.protocol.messages import Finish
from moa_shared.tree import DraftTree

from moa_server.engine.forward_planner import ROWS_TOGETHER, ForwardPart
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import AnswerSteps, LiveSession, Observer
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.shared_pages import SharedPages
from moa_server.engine.stepper import CodedRows, NewestRows, Stepper
from moa_server.session.memory_feed import Chunk, MemoryFeed
from moa_server.session.session import SessionPhase
from moa_server.session.verification import Verification


class RowCoder:
    def __init__(self, stepper: Stepper, jobs: SessionJobs) -> None:
        self.busy = False  # a forward is under way
        self.has_time = True  # the newest one with answers had time for drafts
        self._stepper = stepper
        self._jobs = jobs
        self._short_of_time: set[LiveSession] = set()

    # ------------------------------------------------------------ on the event loop

    def code(self, live: LiveSession, chunk: Chunk) -> asyncio.Future[CodedRows]:
        """Codes a chunk's rows between forwards."""
        feed, tensors = live.stream.feed, live.tensors
        budget = live.stream.budget if self.busy and feed is not None and chunk.plane in feed.encoded else None

        def job() -> CodedRows:
            began = time.perf_counter()
            coded = self._stepper.code(tensors, chunk)
            if budget is not None:
                self._jobs.post(partial(budget.on_encoded, ms_since(began)))
            return coded

        return self._jobs.result_of(job, urgent=True)

    def may_code(self, live: LiveSession) -> bool:
        """Whether there is time to encode older rows; if not, the session's stream learns when there is.

        Without time for drafts they wait where a device has states too: with those alone it writes nearly as well.
        """
        feed = live.stream.feed
        waits = not self.has_time and feed is not None and (feed.thin is not None or bool(feed.yielded))
        if not self.busy or (live.stream.budget.allows_older and not waits):
            return True
        self._short_of_time.add(live)
        return False

    def on_spare_time(self) -> None:
        waiting, self._short_of_time = self._short_of_time, set()
        for live in waiting:
            if live.stream.feed is not None:
                live.stream.feed.may_owe = True
            if live.stream.listener is not None:
                live.stream.listener.on_spare_time()

    def release(self, part: ForwardPart, *, ended: bool) -> None:
        """Lets a step's rows go out, its verdict being on the way; `ended`: so has the answer.

        Where there is no time for drafts, it is told of several rows at a time.
        """
        live, feed, cached = part.live, part.live.stream.feed, part.live.session.cached
        if feed is not None and (
            ended or (part.coding.feed is not feed and (self.has_time or not cached % ROWS_TOGETHER))
        ):
            feed.rows_ready(cached)
        for newest in part.coded:
            self._on_coded(live, part.coding.feed, newest, 0.0)

    def _on_coded(self, live: LiveSession, feed: MemoryFeed | None, newest: CodedRows, took_ms: float) -> None:
        stream = live.stream
        if stream.feed is None or stream.feed is not feed or stream.listener is None:
            return
        if newest.chunk.plane in feed.encoded:
            stream.budget.on_encoded(took_ms)
        stop = newest.chunk.start + newest.chunk.count
        if stop <= live.session.cached:  # a void forward's rows are not the session's
            feed.rows_ready(stop)
            stream.listener.on_rows(newest)

    def _on_coded_after(self, done: Sequence[tuple[ForwardPart, CodedRows | Exception]], took_ms: float) -> None:
        for part, coded in done:
            if isinstance(coded, Exception):
                self._jobs.lose(part.live, coded)
            else:
                self._on_coded(part.live, part.coding.feed, coded, took_ms)

    # ------------------------------------------------------------ on the inference thread

    def code_at_once(self, parts: Sequence[ForwardPart]) -> None:
        """Codes what leaves with the verdicts; a part whose rows cannot be coded has failed."""
        for part, coded in self._code(parts, lambda part: part.coding.at_once):
            if isinstance(coded, Exception):
                part.outcome = coded
            else:
                part.coded.append(coded)

    def code_after(self, parts: Sequence[ForwardPart]) -> None:
        """Codes the rows that take time, once the verdicts are out."""
        began = time.perf_counter()
        if done := [*self._code(parts, lambda part: part.coding.after)]:
            self._jobs.post(partial(self._on_coded_after, done, ms_since(began) / len(done)))

    def _code(
        self, parts: Sequence[ForwardPart], rows_of: Callable[[ForwardPart], Sequence[NewestRows]]
    ) -> Iterator[tuple[ForwardPart, CodedRows | Exception]]:
        chosen = (part for part in parts if isinstance(part.outcome, Verification))
        wanted = [(part, rows) for part in chosen for rows in rows_of(part)]
        coded = self._stepper.code_newest([(part.tensors, rows) for part, rows in wanted]) if wanted else []
        return zip((part for part, _ in wanted), coded, strict=True)


@dataclass(slots=True)
class ForwardFacts:
    """What the parts of one forward have in common."""

    rows: Rows
    step_ms: float
    least_chance: float  # that a draft node must have to be worth verifying in the next one
    row_ms: float  # what a row of its answers took
    plain_ms: float  # what a token of plain steps takes; 0: not known
    steps: AnswerSteps = field(default_factory=AnswerSteps)  # of its answers, as far as they are committed


class Committer:
    def __init__(
        self,
        schedule: Schedule[LiveSession],
        pages: SharedPages,
        coder: RowCoder,
        jobs: SessionJobs,
        observer: Observer,
    ) -> None:
        self._schedule = schedule
        self._pages = pages
        self._coder = coder
        self._jobs = jobs
        self._observer = observer

    def commit_parts(self, parts: Sequence[ForwardPart], step_ms: float, drafting_ms: float) -> None:
        """Commits what a forward gave.

        `step_ms`: how long it took; `drafting_ms`: how long the server drafted before it.
        """
        rows, schedule = _rows_of(parts), self._schedule
        answers, known = max(1, rows.answers), schedule.cost.known
        row_ms = schedule.answers_ms(rows, step_ms) / max(1, rows.fed + rows.nodes)
        plain_ms = schedule.cost.ms(answers - 1) / answers if known else 0.0
        forward = ForwardFacts(rows, step_ms, schedule.least_chance(rows.answers), row_ms, plain_ms)
        tokens = sum(len(part.outcome.taken) for part in parts if isinstance(part.outcome, Verification))
        for part in parts:
            part.live.turn.stepping = False
            part.live.turn.steps += 1
            try:
                self._commit_part(part, forward)
            except Exception as error:  # noqa: BLE001 (whatever it is ends only this session)
                self._jobs.lose(part.live, error)
        schedule.on_forward(rows, step_ms, tokens, drafting_ms)
        self._observer.on_forward(rows, step_ms, drafting_ms, forward.steps)

    def _commit_part(self, part: ForwardPart, forward: ForwardFacts) -> None:
        live, plan, outcome = part.live, part.plan, part.outcome
        if isinstance(outcome, Exception):
            raise outcome
        if live.account.trace is not None:
            live.account.trace.on_step(forward.step_ms, chose=outcome is not None)
        if outcome is None:
            if live.session.on_prefilled(plan):
                self._pages.keep(live)
            _pay(live, len(plan.feed), 0)
            return
        session, listener, finish = live.session, live.stream.listener, outcome.finish
        arrived = session.arrived_draft()
        if session.on_verified(plan, outcome):
            live.account.on_written(len(outcome.taken), len(plan.tree), outcome.accepted, finish)
            self._pages.keep(live)
            _learn(part, arrived, outcome, forward, had_time=self._coder.has_time)
            stale = session.pending.take_stale() if listener is not None else 0
            _add_step(forward.steps, part, outcome, stale)
            if finish is not Finish.UNFINISHED:
                self._observer.on_finish(finish)
            if listener is not None:
                shared = forward.rows.answers > 1
                listener.send_verdict(
                    session.verdict(plan, outcome, stale, forward.step_ms, forward.least_chance, shared=shared)
                )
        self._coder.release(part, ended=finish is not Finish.UNFINISHED)
        if live.account.meter is not None:
            masks = int(plan.form.take_ms() / max(1.0, forward.step_ms)) if plan.form is not None else 0
            _pay(live, len(plan.feed) - 1, len(outcome.taken) + masks)  # what could have been written meanwhile


def _rows_of(parts: Sequence[ForwardPart]) -> Rows:
    answers = [part for part in parts if not part.reads and isinstance(part.outcome, Verification)]
    return Rows(
        len(answers),
        sum(len(part.plan.feed) for part in answers),
        sum(len(part.plan.tree) for part in answers),
        sum(part.rows for part in parts if part.reads),
    )


def _learn(
    part: ForwardPart, arrived: DraftTree, verification: Verification, forward: ForwardFacts, *, had_time: bool
) -> None:
    record, stream, taken = part.live.drafting.record, part.live.stream, verification.taken
    if record is None or len(part.plan.feed) != 1:  # others read a prompt too
        return
    if not (arrived or had_time):  # nobody drafts then
        record.fruitless_steps += 1
        return
    blind = bool(arrived) and stream.feed is not None and stream.feed.owes(part.live.session.answer_start)
    record.learn_taken(arrived, taken, blind=blind)
    if forward.plain_ms:
        stream.budget.on_step(forward.row_ms * part.rows, len(taken), forward.plain_ms)


def _add_step(steps: AnswerSteps, part: ForwardPart, verification: Verification, stale: int) -> None:
    plan, drafting = part.plan, part.live.drafting
    drafted = 0 if plan.given else len(plan.tree) - plan.own_nodes
    steps.steps += 1
    steps.tokens += len(verification.taken)
    steps.drafted += drafted
    steps.accepted += verification.accepted - verification.own_accepted
    steps.own_drafted += plan.own_nodes
    steps.own_accepted += verification.own_accepted
    steps.stale += stale
    steps.run_ahead += drafting.record is not None and drafting.takes_drafts and not drafted


def _pay(live: LiveSession, read: int, written: int) -> None:
    """Counts what a forward has computed for a session, void or not; holds the answer if that was the last of it."""
    if live.closed:
        return
    refusal = live.account.pay(read, written, answering=live.session.phase is SessionPhase.ANSWERING)
    if refusal is not None:
        live.turn.held = True
        if live.stream.listener is not None:
            live.stream.listener.on_held(refusal)
