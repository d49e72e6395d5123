"""Commits what a forward gave one session: to its text, its account, what is shared of it, and the stream that listens.

State: none of its own. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moa_shared.programs.machine import ms_since
from moa_shared.protocol.finish_rule import Finish
from moa_shared.tree import DraftTree

from moa_server.engine.forward_planner import ForwardPart
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import LiveSession
from moa_server.engine.observer import AnswerStep, Observer
from moa_server.engine.page_sharing import PageMoves
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.stepper import CodedRows, Stepper
from moa_server.session.memory_feed import Chunk, MemoryFeed
from moa_server.session.session import SessionPhase
from moa_server.session.verification import Verification


class RowCoder:
    def __init__(self, stepper: Stepper, jobs: SessionJobs) -> None:
        self._stepper = stepper
        self._jobs = jobs
        self._short_of_time: set[LiveSession] = set()

    # ------------------------------------------------------------ on the event loop

    def code(self, live: LiveSession, chunk: Chunk, *, busy: bool) -> asyncio.Future[CodedRows]:
        """Codes a chunk's rows between forwards; `busy`: forwards wait for it meanwhile."""
        feed, tensors = live.stream.feed, live.tensors
        costs = busy and feed is not None and feed.is_encoded(chunk.plane)
        budget = live.stream.budget if costs else None

        def job() -> CodedRows:
            began = time.perf_counter()
            coded = self._stepper.code(tensors, chunk)
            if budget is not None:
                self._jobs.post(partial(budget.on_encoded, ms_since(began)))
            return coded

        return self._jobs.result_of(job, urgent=True)

    def may_code(self, live: LiveSession, *, busy: bool, has_time: bool) -> bool:
        """Whether there is time to encode older rows; if not, the session's stream learns when there is.

        `busy`: a forward is under way; `has_time`: it has time for drafts. If not, they wait where a device has states
        too: with those alone it writes nearly as well.
        """
        stream = live.stream
        waits = (
            not has_time and stream.feed is not None and (stream.feed.thin is not None or len(stream.feed.planes) > 1)
        )
        if not busy or (stream.budget.allows_older and not waits):
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
        """Lets a step's rows go out, its verdict being on the way; `ended`: so has the answer."""
        live, feed = part.live, part.live.stream.feed
        if feed is not None and (ended or not part.coding.gives_rows(feed)):
            feed.rows_ready(live.session.cached)
        for newest in part.coded:
            self._on_coded(live, part.coding.feed, newest, 0.0)

    def _on_coded(self, live: LiveSession, feed: MemoryFeed | None, newest: CodedRows, took_ms: float) -> None:
        stream = live.stream
        if stream.feed is None or stream.feed is not feed or stream.listener is None:
            return
        if feed.is_encoded(newest.chunk.plane):
            stream.budget.on_encoded(took_ms)
        stop = newest.chunk.start + newest.chunk.count
        if stop <= live.session.cached:  # a void forward's rows are not the session's
            feed.rows_ready(stop)
            stream.listener.on_rows(newest)

    # ------------------------------------------------------------ on the inference thread

    def code_at_once(self, parts: Sequence[ForwardPart]) -> None:
        """Codes what leaves with the verdicts; a part whose rows cannot be coded has failed."""
        wanted = [(part, rows) for part in _chosen(parts) for rows in part.coding.at_once]
        if not wanted:
            return
        coded = self._stepper.code_newest([(part.tensors, rows) for part, rows in wanted])
        for (part, _), each in zip(wanted, coded, strict=True):
            if isinstance(each, Exception):
                part.outcome = each
            else:
                part.coded.append(each)

    def code_after(self, parts: Sequence[ForwardPart]) -> None:
        """Codes the rows that take time, once the verdicts are out."""
        wanted = [(part, rows) for part in _chosen(parts) for rows in part.coding.after]
        if not wanted:
            return
        began = time.perf_counter()
        coded = self._stepper.code_newest([(part.tensors, rows) for part, rows in wanted])
        took_ms = ms_since(began) / len(wanted)
        for (part, _), each in zip(wanted, coded, strict=True):
            if isinstance(each, Exception):
                self._jobs.post_loss(part.live, each)
            else:
                self._jobs.post(partial(self._on_coded, part.live, part.coding.feed, each, took_ms))


def _chosen(parts: Sequence[ForwardPart]) -> list[ForwardPart]:
    return [part for part in parts if isinstance(part.outcome, Verification)]


@dataclass(frozen=True, slots=True)
class ForwardFacts:
    """What the parts of one forward have in common.

    `least_chance`: that a draft node must have to be worth verifying in the next one. `row_ms`: what a row of its
    answers took, and `plain_ms` a token of plain steps takes; 0: not known.
    """

    rows: Rows
    step_ms: float
    least_chance: float
    row_ms: float
    plain_ms: float

    @classmethod
    def of(cls, rows: Rows, step_ms: float, schedule: Schedule[LiveSession]) -> ForwardFacts:
        """What the schedule makes of a forward that has ended."""
        answers, cost = max(1, rows.answers), schedule.cost
        row_ms = schedule.answers_ms(rows, step_ms) / max(1, rows.fed + rows.nodes)
        plain_ms = cost.ms(answers - 1) / answers if cost.known else 0.0
        return cls(rows, step_ms, schedule.least_chance(rows.answers), row_ms, plain_ms)


class Committer:
    def __init__(self, pages: PageMoves, coder: RowCoder, observer: Observer) -> None:
        self._pages = pages
        self._coder = coder
        self._observer = observer

    def commit_part(self, part: ForwardPart, forward: ForwardFacts) -> None:
        live, plan, outcome = part.live, part.plan, part.outcome
        if isinstance(outcome, Exception):
            raise outcome
        live.account.on_step(forward.step_ms, chose=outcome is not None)
        if outcome is None:
            if live.session.on_prefilled(plan):
                self._pages.keep(live)
            _pay(live, len(plan.feed), 0)
            return
        self._commit_tokens(part, outcome, forward)
        self._coder.release(part, ended=outcome.finish is not Finish.UNFINISHED)
        masks = int(plan.form.take_ms() / max(1.0, forward.step_ms)) if plan.form is not None else 0
        _pay(live, len(plan.feed) - 1, len(outcome.taken) + masks)  # what could have been written meanwhile

    def _commit_tokens(self, part: ForwardPart, verification: Verification, forward: ForwardFacts) -> None:
        live, plan, session = part.live, part.plan, part.live.session
        arrived = session.arrived_draft()
        if not session.on_verified(plan, verification):
            return
        taken, finish = verification.taken, verification.finish
        live.account.on_written(len(taken), len(plan.tree), verification.accepted, finish)
        self._pages.keep(live)
        self._learn(part, arrived, verification, forward)
        listener = live.stream.listener
        stale = session.pending.take_stale() if listener is not None else 0
        self._observer.on_step(_answer_step(part, verification, stale))
        if finish is not Finish.UNFINISHED:
            self._observer.on_finish(finish)
        if listener is not None:
            least_chance = 0.0 if live.drafting.verifies_all else forward.least_chance
            listener.send_verdict(
                session.verdict(
                    plan,
                    verification,
                    stale=stale,
                    step_ms=forward.step_ms,
                    least_chance=least_chance,
                    shared=forward.rows.answers > 1,
                )
            )

    def _learn(self, part: ForwardPart, arrived: DraftTree, verification: Verification, forward: ForwardFacts) -> None:
        record, stream, taken = part.live.drafting.record, part.live.stream, verification.taken
        if record is None or len(part.plan.feed) != 1:  # others read a prompt too
            return
        blind = bool(arrived) and stream.feed is not None and stream.feed.owes(part.live.session.answer_start)
        record.learn_taken(arrived, taken, blind=blind)
        if forward.plain_ms:
            stream.budget.on_step(forward.row_ms * part.rows, len(taken), forward.plain_ms)


def _answer_step(part: ForwardPart, verification: Verification, stale: int) -> AnswerStep:
    plan, drafting = part.plan, part.live.drafting
    drafted = 0 if plan.given else len(plan.tree) - plan.own_nodes
    return AnswerStep(
        tokens=len(verification.taken),
        drafted=drafted,
        accepted=verification.accepted - verification.own_accepted,
        own_drafted=plan.own_nodes,
        own_accepted=verification.own_accepted,
        stale=stale,
        runs_ahead=drafting.record is not None and drafting.takes_drafts and not drafted,
    )


def _pay(live: LiveSession, read: int, written: int) -> None:
    """Counts what a forward has computed for a session, void or not; holds the answer if that was the last of it."""
    if live.closed:
        return
    refusal = live.account.pay(read, written, answering=live.session.phase is SessionPhase.ANSWERING)
    if refusal is not None:
        live.turn.held = True
        if live.stream.listener is not None:
            live.stream.listener.on_held(refusal)
