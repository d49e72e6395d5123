"""The server's own drafts: before a forward, each session's drafter adds what pays to the draft that has arrived.

Runs on the inference thread. State: what each kind of drafter has shown. Invariant: a drafter that fails costs
its session the drafts, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from moa_shared.protocol.messages import Plane

from moa_server.drafting.forward_cost import CostLine
from moa_server.drafting.growth_rule import GrowthRule
from moa_server.drafting.session_drafter import DrafterRecord, Guess, SessionDrafter
from moa_server.engine.stepper import MemorySource, Outcome, SessionTensors
from moa_server.session.verification import StepPlan, Verification

log = structlog.get_logger()

STEP_SHARE = 0.25  # of a plain step that a step of the drafter takes, until one has been measured


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
        rate: tokens a millisecond.
        cost: of a forward by its rows.
    """

    rate: float
    cost: CostLine


Order = tuple[SessionTensors, StepPlan, DraftOrder | None]


class ServerDrafts:
    """Extends plans by what the server guesses."""

    def __init__(self) -> None:
        self._records: dict[int, DrafterRecord] = {}  # by the drafter's identity
        self._guesses: list[Guess | None] = []

    def extend(self, orders: Sequence[Order], price: TimePrice) -> tuple[list[StepPlan], float]:
        """The plans with the server's nodes, and how long that took, in ms."""
        began = time.perf_counter()
        rows = sum(len(plan.feed) + len(plan.tree) for _, plan, _ in orders) - 1
        plans: list[StepPlan] = []
        self._guesses = []
        for tensors, plan, order in orders:
            guess = self._guess(tensors, plan, order, price, rows) if order is not None else None
            self._guesses.append(guess)
            if guess is None:
                plans.append(plan)
            else:
                plans.append(replace(plan, tree=guess.tree, own_nodes=guess.own))
                rows += guess.own
        return plans, 1e3 * (time.perf_counter() - began)

    def learn(self, orders: Sequence[Order], outcomes: Sequence[Outcome]) -> None:
        """The target has chosen after the plans that `extend` gave last."""
        for (tensors, _, _), guess, outcome in zip(orders, self._guesses, outcomes, strict=True):
            if guess is not None and tensors.drafter is not None and isinstance(outcome, Verification):
                tensors.drafter.learn(guess, outcome.taken)

    def _guess(
        self, tensors: SessionTensors, plan: StepPlan, order: DraftOrder, price: TimePrice, rows: int
    ) -> Guess | None:
        source = tensors.source
        if source is None or source.drafter is None:
            return None
        record = self._records.get(id(source.drafter))
        if record is None:
            record = self._records[id(source.drafter)] = DrafterRecord(STEP_SHARE * price.cost.plain_ms)
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
            return tensors.drafter.guess(plan.tree, order.covered, sampling, rule, read_rows, plan.cached)
        except Exception as error:
            tensors.drafter = None
            log.error("the server's drafter failed: the session goes on without it", exc_info=error)
            return None


def _planes(source: MemorySource) -> tuple[Plane, ...]:
    """The planes that the server's drafter reads."""
    return (Plane.MEMORY, Plane.REUSED_STATE) if source.has_states else (Plane.MEMORY,)
