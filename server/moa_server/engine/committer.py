"""Commits what a forward gave one session: to its text, its account, what is shared of it, and the stream that listens.

State: none of its own. Runs on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.protocol.finish_rule import Finish
from moa_shared.tree.draft_tree import DraftTree

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.observer import AnswerStep, Observer
from moa_server.engine.planning.forward_part import ForwardPart
from moa_server.engine.planning.schedule import Rows, Schedule
from moa_server.engine.prefixes.page_moves import PageMoves
from moa_server.engine.rows.row_coder import RowCoder
from moa_server.session.session import SessionPhase
from moa_server.session.verification import Verification


@dataclass(frozen=True, slots=True)
class ForwardFacts:
    """What the parts of one forward have in common.

    Args:
        step_ms: how long it took.
        least_chance: that a draft node must have to be worth verifying in the next one.
        row_ms: what a row of its answers took, and `plain_ms` a token of plain steps takes; 0: not known.
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
    """Commits the outcomes of forwards."""

    def __init__(self, pages: PageMoves, coder: RowCoder, observer: Observer) -> None:
        self._pages = pages
        self._coder = coder
        self._observer = observer

    def commit(self, part: ForwardPart, forward: ForwardFacts) -> None:
        """Takes in what a forward gave one session.

        Raises:
            Exception: why the session's part failed.
        """
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
            listener.on_verdict(
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
        """Learns how good the stream's drafts are, and how much time its memory may take."""
        record, stream, taken = part.live.drafting.record, part.live.stream, verification.taken
        if record is None or len(part.plan.feed) != 1:  # others read a prompt too
            return
        blind = bool(arrived) and stream.feed is not None and stream.feed.owes(part.live.session.answer_start)
        record.learn(arrived, taken, blind=blind)
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
        live.turn.hold()
        if live.stream.listener is not None:
            live.stream.listener.on_held(refusal)
