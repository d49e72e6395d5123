"""The server's own drafts: before a forward, each session's drafter adds what pays to the draft that has arrived.

Runs on the inference thread. State: what each kind of drafter has shown. Invariant: a drafter that fails costs
its session the drafts, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from moa_shared.programs.elapsed import ms_since
from moa_shared.protocol.messages import Plane

from moa_server.drafting.forward_cost import CostLine
from moa_server.drafting.growth_rule import GrowthRule
from moa_server.drafting.session_drafter import DrafterRecord, Guess, ReadingRoom, SessionDrafter
from moa_server.engine.stepper import MemorySource, SessionTensors, Work
from moa_server.session.verification import StepPlan, Verification

log = structlog.get_logger()

# Of a plain step that a step of the drafter takes, until one has been measured: of EAGLE-3 at 8B. What seems too dear
# at first is never tried.
STEP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """A request to draft for one session.

    Args:
        base: the drafter knows the tokens before it.
        tokens: committed ones from there on, the newest last.
        covered: the chance that the next token is among the nodes that have arrived.
        most_nodes: that may be added to them.
        at_any_price: whether to draft as much as there is room for.
    """

    base: int
    tokens: Sequence[int]
    covered: float
    most_nodes: int
    at_any_price: bool = False


@dataclass(frozen=True, slots=True)
class TimePrice:
    """What time is worth, and what rows take of it.

    Args:
        rate: tokens that a millisecond must bring.
        cost: of a forward by its rows.
    """

    rate: float
    cost: CostLine


@dataclass(eq=False, slots=True)
class DraftedWork(Work):
    """One session's share of a forward, for which the server may draft first.

    Args:
        drafts_forced: what the answer's form forces is drafted too.
        order: None: the server does not draft.
        guess: what it drafted; None: nothing was tried.
    """

    drafts_forced: bool = False
    order: DraftOrder | None = None
    guess: Guess | None = None


class ServerDrafts:
    """Extends plans by what the server guesses."""

    def __init__(self) -> None:
        self._records: dict[int, DrafterRecord] = {}  # by the drafter's identity

    def extend(self, work: Sequence[DraftedWork], price: TimePrice) -> float:
        """Adds what forms force, and the server's nodes, to the plans; returns how long that took, in ms."""
        began = time.perf_counter()
        forced = {each: self._add_forced(each) for each in work if each.drafts_forced}
        rows, room = sum(each.rows for each in work) - 1, ReadingRoom()
        for each in work:
            if (order := each.order) is not None:
                order = replace(order, most_nodes=max(0, order.most_nodes - forced.get(each, 0)))
                each.guess = self._guess(each.tensors, each.plan, order, price, rows, room)
            if each.guess is not None:
                each.plan = each.plan.extend(each.guess.tree, each.plan.own_nodes + each.guess.own)
                rows += each.guess.own
        return ms_since(began)

    @staticmethod
    def _add_forced(work: DraftedWork) -> int:
        """Adds what the form forces to a plan; how many nodes."""
        before = len(work.plan.tree)
        work.plan = work.plan.with_forced()
        return len(work.plan.tree) - before

    def learn(self, work: Sequence[DraftedWork]) -> None:
        """The target has chosen after the plans that `extend` has extended."""
        for each in work:
            if each.guess is None or not isinstance(each.outcome, Verification):
                continue
            if (drafter := each.tensors.drafter) is not None:
                drafter.learn(each.guess, each.outcome.taken)

    def _guess(
        self,
        tensors: SessionTensors,
        plan: StepPlan,
        order: DraftOrder,
        price: TimePrice,
        rows: int,
        room: ReadingRoom,
    ) -> Guess | None:
        source = tensors.source
        if source is None or source.drafter is None:
            return None
        record = self._records.get(id(source.drafter))
        if record is None:
            record = DrafterRecord(STEP_SHARE * price.cost.plain_ms, source.drafter.block_levels)
            self._records[id(source.drafter)] = record
        try:
            if tensors.drafter is None:
                if order.base:
                    return None  # it has failed in this answer
                tensors.drafter = SessionDrafter(source.drafter, record, _planes(source))
            tensors.crop(plan.cached)
            tensors.drafter.tell(order.base, order.tokens)
            step_ms, follow_ms = record.step_ms.mean, record.follow_ms.mean
            rate = 0.0 if order.at_any_price else price.rate
            rule = GrowthRule(rate, price.cost, rows, step_ms, follow_ms, order.most_nodes)
            sampling = plan.sampling
            read_rows = tensors.read_for_drafter
            return tensors.drafter.guess(
                plan.tree, order.covered, sampling, rule, read_rows, plan.cached, room, plan.form
            )
        except Exception as error:
            tensors.drafter = None
            log.error("the server's drafter failed: the session goes on without it", exc_info=error)
            return None


def _planes(source: MemorySource) -> tuple[Plane, ...]:
    """The planes that the server's drafter reads."""
    return (Plane.MEMORY, Plane.REUSED_STATE) if source.has_states else (Plane.MEMORY,)
