"""Plans a forward: which sessions have a part in it, with which rows, and for which the server drafts first.

State: whether there is time for drafts; the schedule has the sessions that wait. Runs on the event loop. Invariant: a
defect in one session loses that session, and the others are planned as if it were not there.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.tree.arithmetic import ROOT

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.losses import SessionLosses
from moa_server.engine.planning.forward_part import ForwardPart
from moa_server.engine.planning.schedule import Schedule, StepCandidate
from moa_server.engine.planning.slow_forms import SlowForms
from moa_server.engine.prefixes.page_moves import PageMoves
from moa_server.engine.rows.row_coding import newest_coding
from moa_server.engine.server_drafts import DraftOrder
from moa_server.session.pending_draft import NO_DRAFT
from moa_server.session.verification import StepPlan


class ForwardPlanner:
    """Plans forwards.

    Args:
        pages: gives a session kept pages of its text, for which it then waits.
        slow_forms: what a session waits for too.
        losses: ends a session that fails.

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
        """The parts of the next forward; none: there is nothing to do."""
        while lives := self._schedule.take_answers():
            parts = self._plan_answers(lives)
            if parts:
                return parts + self._plan_reading(parts)
        return self._plan_reading([])

    def _plan_answers(self, lives: Sequence[LiveSession]) -> list[ForwardPart]:
        """Plans the steps of answers, and shares out the draft nodes among them."""
        self.has_time = self._schedule.has_time(len(lives))
        offers: list[tuple[LiveSession, StepPlan, StepCandidate]] = []
        for live in lives:
            live.turn.take()
            if (plan := self._plan_step(live)) is None:
                continue
            if (candidate := self._offer(live, plan)) is not None:
                offers.append((live, plan, candidate))
        trees = self._schedule.choose_nodes([candidate for _, _, candidate in offers])
        parts = []
        for (live, plan, _), tree in zip(offers, trees, strict=True):
            if (chosen := plan.pick(tree)) is not None:
                order = self._order(live, chosen) if self.has_time or live.drafting.verifies_all else None
                parts.append(ForwardPart.of(live, chosen, newest_coding(live, chosen), order=order))
        return parts

    def _order(self, live: LiveSession, plan: StepPlan) -> DraftOrder | None:
        """What to tell the server's drafter of this session; None: it does not draft now."""
        session, drafting = live.session, live.drafting
        has_price = self._schedule.cost.known or drafting.verifies_all
        drafts = drafting.by_server and not plan.form_is_slow
        if not (drafts and plan.chooses and len(plan.feed) == 1 and has_price):
            return None
        base = drafting.tell(session)
        covered = 0.0
        if drafting.record is not None and plan.tree:
            chances = drafting.record.survival(plan.tree)
            covered = sum(chances[node] for node in plan.tree.children[ROOT])
        most_nodes = max(0, session.most_nodes - len(plan.tree))
        return DraftOrder(base, session.tokens[base:], covered, most_nodes, at_any_price=drafting.verifies_all)

    def _plan_reading(self, answers: Sequence[ForwardPart]) -> list[ForwardPart]:
        """Plans how much is read of which prompts next to these answers."""
        room = self._schedule.read_tokens(sum(part.rows for part in answers))
        parts: list[ForwardPart] = []
        while room > 0 and (live := self._schedule.take_prompt()) is not None:
            live.turn.take()
            if self._pages.adopt(live):
                continue
            plan = self._plan_step(live, most_read=room)
            if plan is not None:
                parts.append(ForwardPart.of(live, plan, newest_coding(live, plan), reads=True))
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
