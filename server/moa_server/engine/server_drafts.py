"""Whether the server drafts for a session, and its drafts.

`drafting_source` and `SessionDrafting.agree` settle it with a stream; `SessionDrafting.order` asks before each forward;
`ServerDrafts` then has the drafter add what pays, by `GrowthRule`, to the draft that has arrived. That is on the
inference thread, the rest on the event loop. Invariant: a drafter that fails costs its session the drafts, and nothing
else.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from moa_shared.programs.machine import ms_since
from moa_shared.protocol.messages import Plane
from moa_shared.tree import ROOT

from moa_server.drafting.forward_cost import CostLine, DraftRecord, GrowthRule
from moa_server.drafting.session_drafter import DrafterRecord, Guess, OwnDrafter, ReadingRoom, SessionDrafter
from moa_server.engine.stepper import MemorySource, SessionTensors, Stepper, Work
from moa_server.session.memory_feed import KeptPlane
from moa_server.session.session import Session
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
        at_any_price: whether to draft as much as there is room for.
    """

    base: int
    tokens: Sequence[int]
    covered: float
    most_nodes: int
    at_any_price: bool = False


def drafting_source(stepper: Stepper, source: MemorySource | None, *, wanted: bool) -> MemorySource | None:
    """The source whose drafter drafts here for a client; None: the server does not draft for it.

    `source`: of the memory that the client wants; None: it wants none. `wanted`: whether the client wants the server's
    drafts, and the operator too.
    """
    source = source or stepper.find_source(b"")
    return source if wanted and source is not None and source.drafter is not None else None


@dataclass(slots=True)
class SessionDrafting:
    """The drafters of one session.

    Args:
        source: makes the memory rows that are kept; None: none are.
        record: how good the drafts of the attached stream are; None: none come.
        takes_drafts: whether they count.
        verifies_all: whether all of their nodes are verified, even where that does not pay.
        drafts_forced: whether it drafts what an answer's form forces, for which it needs no drafter.
    """

    source: MemorySource | None = None
    widths: Mapping[KeptPlane, int] = field(default_factory=dict)
    record: DraftRecord | None = None
    takes_drafts: bool = True
    verifies_all: bool = False
    by_server: bool = False
    drafts_forced: bool = False
    _told: int = 0  # tokens that the server's drafter knows, and their hash
    _told_hash: int = 0

    @property
    def own_drafter(self) -> OwnDrafter | None:
        return self.source.drafter if self.by_server and self.source is not None else None

    @property
    def fruitless_steps(self) -> int:
        return self.record.fruitless_steps if self.record is not None else 0

    def agree(
        self,
        *,
        by_server: bool,
        drafts_forced: bool = False,
        record: DraftRecord | None = None,
        takes_drafts: bool = True,
        verifies_all: bool = False,
    ) -> None:
        self.by_server, self.drafts_forced, self.record = by_server, drafts_forced, record
        self.takes_drafts, self.verifies_all = takes_drafts, verifies_all

    def keep(self, source: MemorySource, widths: Mapping[KeptPlane, int]) -> list[KeptPlane]:
        """Keeps rows of these planes from now on; returns the planes that were not kept before."""
        before: Mapping[KeptPlane, int] = self.widths if self.source is source else {}
        self.source, self.widths = source, {**before, **widths}
        self.forget()
        return [plane for plane in widths if plane not in before]

    def tell(self, session: Session) -> int:
        """Counts the committed tokens as known to the server's drafter; returns how many it knew before."""
        held, told = len(session.tokens), self._told
        known = told if told <= held and session.hashes.at(told) == self._told_hash else 0
        self._told, self._told_hash = held, session.hashes.at(held)
        return known

    def order(self, session: Session, plan: StepPlan, *, has_price: bool) -> DraftOrder | None:
        """What to tell the server's drafter before a step; None: it does not draft now."""
        has_price = has_price or self.verifies_all
        drafts = self.by_server and not plan.form_is_slow
        if not (drafts and plan.chooses and len(plan.feed) == 1 and has_price):
            return None
        base = self.tell(session)
        covered = 0.0
        if self.record is not None and plan.tree:
            chances = self.record.survival(plan.tree)
            covered = sum(chances[node] for node in plan.tree.children[ROOT])
        most_nodes = max(0, session.most_nodes - len(plan.tree))
        return DraftOrder(base, session.tokens[base:], covered, most_nodes, at_any_price=self.verifies_all)

    def forget(self) -> None:
        """The server's drafter knows nothing: it must be told the whole text."""
        self._told = 0


@dataclass(frozen=True, slots=True)
class TimePrice:
    rate: float
    cost: CostLine


@dataclass(eq=False, slots=True)
class DraftedWork(Work):
    """One session's share of a forward, for which the server may draft first.

    `order`: None: the server does not draft. `guess`: what it drafted; None: nothing was tried.
    """

    drafts_forced: bool = False
    order: DraftOrder | None = None
    guess: Guess | None = None


class ServerDrafts:
    def __init__(self) -> None:
        self._records: dict[int, DrafterRecord] = {}  # by the drafter's identity

    def deepen(self, work: Sequence[DraftedWork], price: TimePrice) -> float:
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
        before = len(work.plan.tree)
        work.plan = work.plan.with_forced()
        return len(work.plan.tree) - before

    def learn_from(self, work: Sequence[DraftedWork]) -> None:
        for each in work:
            if each.guess is None or not isinstance(each.outcome, Verification):
                continue
            if (drafter := each.tensors.drafter) is not None:
                drafter.learn_guess(each.guess, each.outcome.taken)

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
                planes = (Plane.MEMORY, Plane.REUSED_STATE) if source.has_states else (Plane.MEMORY,)
                tensors.drafter = SessionDrafter(source.drafter, record, planes)
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
