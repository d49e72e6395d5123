"""The server of a simulation: one session on an engine that has nothing else to do, and what a forward takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from moa_server.drafting.draft_record import DraftRecord
from moa_server.engine.schedule import Candidate, Rows, Schedule
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.protocol.messages import Draft, Verdict

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.text import VOCAB_SIZE, ScriptedText


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts take, in ms; the defaults are those of the default target on one core (docs/bench.md).

    Args:
        plain_ms: a forward of one token, the encoding of its memory row included.
        verify_ms: the same where a draft hangs below it; `node_ms` more for each of its nodes.
        draft_ms: a step of the drafter.
    """

    plain_ms: float = 49.85
    verify_ms: float = 49.85
    node_ms: float = 0.85
    draft_ms: float = 5.0

    def forward_ms(self, nodes: int) -> float:
        return self.verify_ms + self.node_ms * nodes if nodes else self.plain_ms


class SimulatedServer:
    """A server of one session, which steps whenever it can.

    Args:
        run_ahead: whether to step with no draft.
        chooses_nodes: whether it verifies only the nodes that are worth it; otherwise all that have arrived.
        wait_ms: how long after a step it would wait for a draft before a plain step. The real server never does: 0.
    """

    def __init__(
        self,
        loop: EventLoop,
        costs: Costs,
        text: ScriptedText,
        send: Callable[[Verdict], object],
        *,
        run_ahead: bool,
        chooses_nodes: bool = True,
        wait_ms: float = 0.0,
    ) -> None:
        limits = SessionLimits(len(text.tokens), VOCAB_SIZE)
        self.session = Session(limits, end_of_text=frozenset(), decode=lambda tokens: "", run_ahead=run_ahead)
        self.forwards = self.verified_nodes = self.accepted = self.stale_nodes = 0
        self._schedule: Schedule[SimulatedServer] = Schedule()
        self._drafts = DraftRecord()
        self._chooses_nodes = chooses_nodes
        self._loop = loop
        self._costs = costs
        self._text = text
        self._send = send
        self._wait_ms = wait_ms
        self._stepped_ms: float | None = None
        self._busy = False

    def on_draft(self, message: Draft) -> None:
        self.session.on_draft(message)
        self.wake()

    def on_ack(self, committed: int) -> None:
        self.session.on_ack(committed)
        self.wake()

    def wake(self) -> None:
        """Steps, if there is something to do."""
        if self._busy:
            return
        waits_until_ms = self._stepped_ms + self._wait_ms if self._stepped_ms is not None else 0.0
        if self._loop.now_ms < waits_until_ms and not self.session.arrived_draft():
            self._loop.at(waits_until_ms, self.wake)
            return
        plan = self._plan_step()
        if plan is None:
            return
        self._busy = True
        took_ms = self._costs.forward_ms(len(plan.tree))
        self._loop.after(took_ms, partial(self._on_forward, plan, took_ms))

    def _plan_step(self) -> StepPlan | None:
        plan = self.session.plan_step()
        if plan is None or not self._chooses_nodes:
            return plan
        offered = Candidate(len(plan.feed), plan.tree, self._drafts.survival(plan.tree))
        return self.session.plan_step(self._schedule.choose_nodes([offered])[0])

    def _on_forward(self, plan: StepPlan, took_ms: float) -> None:
        session = self.session
        verification: Verification = plan.verify(self._text.choose(plan.positions))
        arrived = session.arrived_draft()
        self._busy = False
        self._stepped_ms = self._loop.now_ms
        session.on_verified(plan, verification)
        self._drafts.learn(arrived, verification.taken)
        self._schedule.on_forward(Rows(1, 1, len(plan.tree)), took_ms, len(verification.taken))
        self.forwards += 1
        self.verified_nodes += len(plan.tree)
        self.accepted += verification.accepted
        self.stale_nodes += session.pending.take_stale()
        self._send(session.verdict(plan, verification, stale=0, step_ms=took_ms))
        self.wake()
