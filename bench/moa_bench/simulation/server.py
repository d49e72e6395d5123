"""The server of a simulation: sessions that step together, by the server's own schedule, and what a forward takes.

State: the sessions, of which some wait in the schedule. Invariants: one forward at a time, as in the engine, and in it
what the engine would plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from moa_server.drafting.forward_cost import RowShares
from moa_server.drafting.growth_rule import DraftRecord, GrowthRule
from moa_server.engine.planning.schedule import Rows, Schedule, StepCandidate
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.protocol.messages import Ask, Draft, Verdict
from moa_shared.tree.draft_tree import DraftTree

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.text import VOCAB_SIZE, ScriptedText

ROW_SHARES = RowShares.straight(0.85 / 49.85)  # of the default target (docs/measurements/engine.md)
MEASURED_ROWS = (2, 4, 8, 16, 32)  # of the forwards whose times a server knows from its start
LEARNT_FORWARDS = 48  # more than `ForwardCost` remembers


class ForwardCosts(Protocol):
    """What a server's work takes."""

    def forward_ms(self, nodes: float, answers: float = 1) -> float:
        """A forward of so many answers with so many rows of drafts and prompts in all."""
        ...

    def own_draft_ms(self, answers: float) -> float:
        """One more draft token for each of so many answers, made by the server."""
        ...


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts take, in ms; the defaults are those of the default target (docs/measurements/engine.md)."""

    plain_ms: float = 49.85  # a forward of one token, the encoding of its memory row included
    verify_ms: float = 49.85  # the same where a draft hangs below it
    rows: RowShares = ROW_SHARES  # what further rows add to either
    draft_ms: float = 5.0  # a step of the drafter

    def forward_ms(self, nodes: float, answers: float = 1) -> float:
        return (self.verify_ms if nodes else self.plain_ms) + self.plain_ms * self.rows.of(nodes + answers - 1)

    def own_draft_ms(self, answers: float) -> float:
        return self.draft_ms * answers


class SimulatedSession:
    """One session.

    Args:
        send: takes its verdicts.
        run_ahead: whether to step with no draft.
        own_acceptance: of the drafter that the server runs for it while that pays; None: it runs none.
    """

    def __init__(
        self,
        server: "SimulatedServer",
        text: ScriptedText,
        send: Callable[[Verdict], object],
        *,
        run_ahead: bool = True,
        own_acceptance: float | None = None,
    ) -> None:
        limits = SessionLimits(len(text.tokens), VOCAB_SIZE)
        self.session = Session(limits, end_of_text=frozenset(), decode=lambda tokens: "", run_ahead=run_ahead)
        self.text = text
        self.send = send
        self.own_acceptance = own_acceptance
        self.drafts = DraftRecord()
        self.waits = False
        self._server = server

    def on_ask(self, ask: Ask) -> None:
        """A question whose prompt has been read but for the last token."""
        self.session.on_ask(ask)
        self.session.on_adopted(ask.end - 1, self.session.tokens, self.session.cache_version)
        self._server.wake(self)

    def on_draft(self, message: Draft) -> None:
        self.session.on_draft(message)
        self._server.wake(self)

    def on_ack(self, committed: int) -> None:
        self.session.on_ack(committed)
        self._server.wake(self)


@dataclass(frozen=True, slots=True)
class SimulatedPart:
    """One session's part of a forward."""

    live: SimulatedSession
    plan: StepPlan

    @property
    def rows(self) -> int:
        return len(self.plan.feed) + len(self.plan.tree)


class SimulatedServer:
    """A server that steps whenever it can.

    Args:
        own_drafts: tokens that it drafts for each answer before a forward, whether that pays or not.
        measured: the server has measured plain steps and rows when it started, as the real one does.
    """

    def __init__(self, loop: EventLoop, costs: ForwardCosts, *, own_drafts: int = 0, measured: bool = False) -> None:
        self._least_chance = 0.0
        self.forwards = self.accepted = 0
        self._schedule: Schedule[SimulatedSession] = Schedule()
        if measured:
            plain_ms = costs.forward_ms(0)
            times = [(rows, costs.forward_ms(rows - 1)) for rows in MEASURED_ROWS]
            self._schedule = Schedule(RowShares.of_times(plain_ms, times), plain_ms)
        self._loop = loop
        self._costs = costs
        self._own_drafts = own_drafts
        self._busy = False

    def learn_costs(self, answers: int) -> None:
        """Knows from now on what forwards of so many answers take, as one that has served such a load for minutes."""
        for number in range(LEARNT_FORWARDS):
            nodes = (0, answers // 2, answers, 2 * answers)[number % 4]
            ms = self._costs.forward_ms(nodes, answers)
            self._schedule.on_forward(Rows(answers, answers, nodes, 0), ms, answers)

    def wake(self, live: SimulatedSession) -> None:
        """Queues a session, and steps if nothing runs."""
        if not live.waits:
            live.waits = True
            self._schedule.add(live)
        self._dispatch()

    def _dispatch(self) -> None:
        if self._busy:
            return
        taken = self._schedule.take_answers()
        for live in taken:
            live.waits = False
        parts = self._plan(taken)
        if not parts:
            return
        self._busy = True
        parts, drafting_ms = self._extend(parts)
        step_ms = self._costs.forward_ms(sum(part.rows for part in parts) - len(parts), len(parts))
        self._loop.after(drafting_ms + step_ms, partial(self._on_forward, parts, drafting_ms, step_ms))

    def _plan(self, taken: Sequence[SimulatedSession]) -> list[SimulatedPart]:
        """As the engine: who can step, and which of their nodes are verified."""
        parts = []
        for live in taken:
            if self._own_drafts and live.session.plan_step() is not None:
                live.session.on_draft(self._draft_for(live))
            plan = live.session.plan_step()
            if plan is not None:
                parts.append(SimulatedPart(live, plan))
        offered = [
            StepCandidate(len(part.plan.feed), part.plan.tree, part.live.drafts.survival(part.plan.tree))
            for part in parts
        ]
        chosen = []
        for part, tree in zip(parts, self._schedule.choose_nodes(offered), strict=True):
            if (plan := part.plan.pick(tree)) is not None:
                chosen.append(SimulatedPart(part.live, plan))
        return chosen

    def _extend(self, parts: Sequence[SimulatedPart]) -> tuple[list[SimulatedPart], float]:
        """As the engine: the server's own nodes, and how long it drafts them, in ms.

        Its drafter here makes chains, and only for answers to which no nodes have come.
        """
        schedule, most = self._schedule, max(1, sum(part.live.own_acceptance is not None for part in parts))
        step_ms = self._costs.own_draft_ms(most) / most  # the share of one of those that draft at once
        drafting: list[int] = []  # how many draft, by depth
        drafting_ms = self._own_drafts * self._costs.own_draft_ms(len(parts))
        rate, cost, rows = schedule.draft_price(len(parts)), schedule.cost.line(), sum(part.rows for part in parts) - 1
        extended = []
        for part in parts:
            live, plan = part.live, part.plan
            if live.own_acceptance is None or not schedule.cost.known or len(plan.feed) > 1 or plan.tree:
                extended.append(part)
                continue
            rule = GrowthRule(rate, cost, rows, step_ms, 0.0, live.session.most_nodes)
            tree, steps = _guess(live, live.own_acceptance, rule)
            extended.append(replace(part, plan=replace(plan, tree=tree, own_nodes=len(tree))))
            drafting += [0] * (steps - len(drafting))
            for depth in range(steps):
                drafting[depth] += 1
            rows += len(tree)
        return extended, drafting_ms + sum(self._costs.own_draft_ms(count) for count in drafting)

    def _draft_for(self, live: SimulatedSession) -> Draft:
        session, held = live.session, len(live.session.tokens)
        tokens: list[int] = []
        for _ in range(self._own_drafts):
            tokens.append(live.text.draft_on(held, tokens))
        return Draft(session.pending.epoch + 1, held, session.hashes.short_at(held), 0, tokens)

    def _on_forward(self, parts: Sequence[SimulatedPart], drafting_ms: float, step_ms: float) -> None:
        self._busy = False
        self.forwards += 1
        fed, nodes = sum(len(part.plan.feed) for part in parts), sum(len(part.plan.tree) for part in parts)
        self._least_chance = self._schedule.least_chance(len(parts))
        tokens = sum(self._commit(part, drafting_ms + step_ms) for part in parts)
        self._schedule.on_forward(Rows(len(parts), fed, nodes), step_ms, tokens, drafting_ms)
        for part in parts:
            if not part.live.waits:
                part.live.waits = True
                self._schedule.add(part.live)
        self._dispatch()

    def _commit(self, part: SimulatedPart, took_ms: float) -> int:
        """Verifies, and tells the device; the tokens that were committed."""
        live, plan, session = part.live, part.plan, part.live.session
        verification = plan.verify(live.text.choose(plan.positions))
        arrived = session.arrived_draft()
        session.on_verified(plan, verification)
        live.drafts.learn(arrived, verification.taken)
        self.accepted += verification.accepted
        live.send(session.verdict(plan, verification, stale=0, step_ms=took_ms, least_chance=self._least_chance))
        return len(verification.taken)


def _guess(live: SimulatedSession, acceptance: float, rule: GrowthRule) -> tuple[DraftTree, int]:
    """The nodes of the server's drafter that are worth their rows, and how many steps it took."""
    held, reach = len(live.session.tokens), 1.0
    tokens: list[int] = []
    chances: list[float] = []
    while len(tokens) < rule.most_nodes and rule.pays(reach, acceptance, 1.0, later=acceptance, drafted=len(tokens)):
        tokens.append(live.text.draft_on(held, tokens))
        reach *= acceptance
        chances.append(reach)
    return DraftTree.chain(tokens).pick(rule.choose(chances)), len(tokens)
