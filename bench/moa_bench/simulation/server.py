"""The server of a simulation: sessions that step together, by the server's own schedule, and what a forward takes.

State: the sessions, of which some wait in the schedule. Invariants: one forward at a time, as in the engine, and in it
what the engine would plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from moa_server.drafting.draft_record import DraftRecord
from moa_server.drafting.growth_rule import GrowthRule
from moa_server.engine.schedule import Candidate, Rows, Schedule
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.protocol.messages import Ask, Draft, Verdict
from moa_shared.tree.draft_tree import DraftTree

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.text import VOCAB_SIZE, ScriptedText

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
    """What the parts take, in ms; the defaults are those of the default target on one core (docs/bench.md).

    Args:
        plain_ms: a forward of one token, the encoding of its memory row included.
        verify_ms: the same where a draft hangs below it; `node_ms` more for each further row.
        draft_ms: a step of the drafter.
    """

    plain_ms: float = 49.85
    verify_ms: float = 49.85
    node_ms: float = 0.85
    draft_ms: float = 5.0

    def forward_ms(self, nodes: float, answers: float = 1) -> float:
        return (self.verify_ms if nodes else self.plain_ms) + self.node_ms * (nodes + answers - 1)

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
        server: SimulatedServer,
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

    def on_ask(self, ask: Ask, *, read: bool = True) -> None:
        """A question.

        Args:
            read: its prompt has been read but for the last token.
        """
        session, known = self.session, ask.end - 1
        session.on_ask(ask)
        if read:
            session.on_adopted(known, session.tokens, session.cache_version)
        self._server.wake(self)

    def on_draft(self, message: Draft) -> None:
        self.session.on_draft(message)
        self._server.wake(self)

    def on_ack(self, committed: int) -> None:
        self.session.on_ack(committed)
        self._server.wake(self)


@dataclass(frozen=True, slots=True)
class SimulatedPart:
    """One session's part of a forward.

    Args:
        reads: it reads a prompt, whether to its end or not.
    """

    live: SimulatedSession
    plan: StepPlan
    reads: bool = False

    @property
    def rows(self) -> int:
        return len(self.plan.feed) + len(self.plan.tree)


class SimulatedServer:
    """A server that steps whenever it can.

    Args:
        wait_ms: how long after a step it would wait for drafts before plain steps. The real server never does: 0.
        own_drafts: tokens that it drafts for each answer before a forward, whether that pays or not.
        measured: the server has measured plain steps and rows when it started, as the real one does.
    """

    def __init__(
        self,
        loop: EventLoop,
        costs: ForwardCosts,
        *,
        wait_ms: float = 0.0,
        own_drafts: int = 0,
        measured: bool = False,
    ) -> None:
        self._least_chance = 0.0
        self.forwards = self.verified_nodes = self.accepted = self.stale_nodes = 0
        self._schedule: Schedule[SimulatedSession] = Schedule()
        if measured:
            plain_ms = costs.forward_ms(0)
            self._schedule = Schedule(costs.forward_ms(1) / plain_ms - 1, plain_ms)
        self._loop = loop
        self._costs = costs
        self._wait_ms = wait_ms
        self._own_drafts = own_drafts
        self._stepped_ms: float | None = None
        self._busy = False

    def open(
        self,
        text: ScriptedText,
        send: Callable[[Verdict], object],
        *,
        run_ahead: bool = True,
        own_acceptance: float | None = None,
    ) -> SimulatedSession:
        """A new session."""
        return SimulatedSession(self, text, send, run_ahead=run_ahead, own_acceptance=own_acceptance)

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
        waits_until_ms = self._stepped_ms + self._wait_ms if self._stepped_ms is not None else 0.0
        if self._loop.now_ms < waits_until_ms and not any(live.session.arrived_draft() for live in taken):
            for live in taken:
                self._schedule.add(live)
            self._loop.at(waits_until_ms, self._dispatch)
            return
        for live in taken:
            live.waits = False
        parts = self._plan(taken)
        parts += self._plan_reading(parts)
        if not parts:
            return
        self._busy = True
        parts, drafting_ms = self._extend(parts)
        answers = sum(not part.reads for part in parts)
        step_ms = self._costs.forward_ms(sum(part.rows for part in parts) - answers, answers)
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
            Candidate(len(part.plan.feed), part.plan.tree, part.live.drafts.survival(part.plan.tree)) for part in parts
        ]
        chosen = []
        for part, tree in zip(parts, self._schedule.choose_nodes(offered), strict=True):
            if (plan := part.plan.pick(tree)) is not None:
                chosen.append(SimulatedPart(part.live, plan))
        return chosen

    def _plan_reading(self, answers: Sequence[SimulatedPart]) -> list[SimulatedPart]:
        """As the engine: how much is read of which prompts beside these answers."""
        room = self._schedule.read_tokens(sum(part.rows for part in answers))
        parts: list[SimulatedPart] = []
        while room > 0 and (live := self._schedule.take_prompt()) is not None:
            live.waits = False
            plan = live.session.plan_step(most_read=room)
            if plan is not None:
                parts.append(SimulatedPart(live, plan, reads=True))
                room -= parts[-1].rows
                self._schedule.on_read(live, parts[-1].rows)
        return parts

    def _extend(self, parts: Sequence[SimulatedPart]) -> tuple[list[SimulatedPart], float]:
        """As the engine: the server's own nodes, and how long it drafts them, in ms.

        Its drafter here makes chains, and only for answers to which no nodes have come.
        """
        schedule, most = self._schedule, max(1, sum(live.own_acceptance is not None for live in map(_live, parts)))
        step_ms = self._costs.own_draft_ms(most) / most  # the share of one of those that draft at once
        drafting: list[int] = []  # how many draft, by depth
        drafting_ms = self._own_drafts * self._costs.own_draft_ms(sum(not part.reads for part in parts))
        rate, cost, rows = schedule.rate(len(parts)), schedule.cost.line(), sum(part.rows for part in parts) - 1
        extended = []
        for part in parts:
            live, plan = part.live, part.plan
            chooses_next = not part.reads and len(plan.feed) == 1 and not plan.tree
            if live.own_acceptance is None or not schedule.cost.known or not chooses_next:
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
        self._stepped_ms = self._loop.now_ms
        self.forwards += 1
        answers = [part for part in parts if not part.reads]
        nodes = sum(len(part.plan.tree) for part in answers)
        rows = Rows(
            len(answers),
            sum(len(part.plan.feed) for part in answers),
            nodes,
            sum(part.rows for part in parts if part.reads),
        )
        self._least_chance = self._schedule.least_chance(rows.answers)
        verifications = [self._commit(part, drafting_ms + step_ms) for part in parts]
        tokens = sum(len(each.taken) for part, each in zip(parts, verifications, strict=True) if each is not None)
        self._schedule.on_forward(rows, step_ms, tokens, drafting_ms)
        self.verified_nodes += nodes
        for part in parts:
            if not part.live.waits:
                part.live.waits = True
                self._schedule.add(part.live)
        self._dispatch()

    def _commit(self, part: SimulatedPart, took_ms: float) -> Verification | None:
        live, plan, session = part.live, part.plan, part.live.session
        if not plan.chooses:
            session.on_prefilled(plan)
            return None
        verification: Verification = plan.verify(live.text.choose(plan.positions))
        arrived = session.arrived_draft()
        session.on_verified(plan, verification)
        live.drafts.learn(arrived, verification.taken)
        self.accepted += verification.accepted
        self.stale_nodes += session.pending.take_stale()
        live.send(session.verdict(plan, verification, stale=0, step_ms=took_ms, least_chance=self._least_chance))
        return verification


def _live(part: SimulatedPart) -> SimulatedSession:
    return part.live


def _guess(live: SimulatedSession, acceptance: float, rule: GrowthRule) -> tuple[DraftTree, int]:
    """The nodes of the server's drafter that are worth their rows, and how many steps it took."""
    held, reach = len(live.session.tokens), 1.0
    tokens: list[int] = []
    chances: list[float] = []
    while len(tokens) < rule.most_nodes and rule.pays(reach, acceptance):
        tokens.append(live.text.draft_on(held, tokens))
        reach *= acceptance
        chances.append(reach)
    return DraftTree.chain(tokens).pick(rule.choose(chances)), len(tokens)
