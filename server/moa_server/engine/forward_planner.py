"""Plans a forward: whose parts it has, with which rows, and for whom the server is to draft first.

State: none of its own; the schedule says who waits. Runs on the event loop. Invariant: a defect in one session loses
that session, and the others are planned as if it were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree

from moa_server.engine.live_session import LiveSession
from moa_server.engine.row_coding import Coding, newest_coding
from moa_server.engine.schedule import Candidate, Schedule
from moa_server.engine.server_drafts import DraftOrder
from moa_server.session.verification import StepPlan


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a forward.

    Args:
        reads: it reads a prompt, whether to its end or not.
        order: to draft for it first; None: the server does not.
    """

    live: LiveSession
    plan: StepPlan
    coding: Coding
    reads: bool = False
    order: DraftOrder | None = None

    @property
    def rows(self) -> int:
        """Rows of the target."""
        return len(self.plan.feed) + len(self.plan.tree)


class ForwardPlanner:
    """Plans forwards.

    Args:
        adopt: begins to take over kept pages of a text; True if there are some, and the session is to wait for them.
        lose: ends a session that fails.
    """

    def __init__(
        self,
        schedule: Schedule[LiveSession],
        adopt: Callable[[LiveSession], bool],
        lose: Callable[[LiveSession, Exception], None],
    ) -> None:
        self._schedule = schedule
        self._adopt = adopt
        self._lose = lose

    def plan(self) -> list[Part]:
        """The parts of the next forward; none: nobody has anything to do."""
        while lives := self._schedule.take_answers():
            parts = self._plan_answers(lives)
            if parts:
                return parts + self._plan_reading(parts)
        return self._plan_reading([])

    def _plan_answers(self, lives: Sequence[LiveSession]) -> list[Part]:
        """Plans the steps of answers, and shares out the draft nodes among them."""
        offers: list[tuple[LiveSession, StepPlan, Candidate]] = []
        for live in lives:
            live.queued = False
            if (plan := self._plan_step(live)) is not None and (candidate := self._offer(live, plan)) is not None:
                offers.append((live, plan, candidate))
        trees = self._schedule.choose_nodes([candidate for _, _, candidate in offers])
        parts = []
        for (live, plan, _), tree in zip(offers, trees, strict=True):
            chosen = plan if len(tree) == len(plan.tree) else self._plan_step(live, tree)
            if chosen is not None:
                parts.append(Part(live, chosen, newest_coding(live, chosen), order=self._order(live, chosen)))
        return parts

    def _order(self, live: LiveSession, plan: StepPlan) -> DraftOrder | None:
        """What to tell the server's drafter of this session; None: it does not draft now."""
        session = live.session
        has_price = self._schedule.cost.known or live.verifies_all
        if not (live.server_drafts and plan.chooses and len(plan.feed) == 1 and has_price):
            return None
        held, knows = len(session.tokens), live.drafter_knows
        base = knows if knows <= held and session.hashes.at(knows) == live.drafter_hash else 0
        live.drafter_knows, live.drafter_hash = held, session.hashes.at(held)
        covered = 0.0
        if live.drafts is not None and plan.tree:
            chances = live.drafts.survival(plan.tree)
            covered = sum(chances[node] for node in plan.tree.children[ROOT])
        most_nodes = max(0, session.most_nodes - len(plan.tree))
        return DraftOrder(base, session.tokens[base:], covered, most_nodes, at_any_price=live.verifies_all)

    def _plan_reading(self, answers: Sequence[Part]) -> list[Part]:
        """Plans how much is read of which prompts beside these answers."""
        room = self._schedule.read_tokens(sum(part.rows for part in answers))
        parts: list[Part] = []
        while room > 0 and (live := self._schedule.take_prompt()) is not None:
            live.queued = False
            if self._adopt(live):
                continue
            plan = self._plan_step(live, most_read=room)
            if plan is not None:
                parts.append(Part(live, plan, newest_coding(live, plan), reads=True))
                room -= parts[-1].rows
                self._schedule.on_read(live, parts[-1].rows)
        return parts

    def _plan_step(
        self, live: LiveSession, tree: DraftTree | None = None, most_read: int | None = None
    ) -> StepPlan | None:
        if live.closed or live.held or (live.listener is None and live.session.unread > 1):
            return None  # nobody is waiting for this prompt: it is read when somebody does
        try:
            return live.session.plan_step(tree, most_read)
        except Exception as error:  # noqa: BLE001 (a defect in one session must not stop the others)
            self._lose(live, error)
            return None

    def _offer(self, live: LiveSession, plan: StepPlan) -> Candidate | None:
        """What a session offers to a forward."""
        if live.drafts is None:
            return Candidate(len(plan.feed), plan.tree, (), verifies_all=True)
        try:
            return Candidate(len(plan.feed), plan.tree, live.drafts.survival(plan.tree), live.verifies_all)
        except Exception as error:  # noqa: BLE001 (as above)
            self._lose(live, error)
            return None
