"""The server's own steps in this process: one answer at a time, without link, stream and event loop.

What the server does for a client that sends no drafts, in the order of its engine, and what each part of it takes.
State: the schedule and what drafting has taken so far, which last from one answer to the next, as on a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.server_drafts import DraftedWork, DraftOrder, ServerDrafts, TimePrice
from moa_server.engine.stepper import Stepper
from moa_server.session.session import Phase, Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.errors import DataError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A forward of an answer under way.

    Args:
        tokens: that it committed; `nodes`: that it verified.
        forward_ms: the verification; `drafting_ms`: what came before it.
    """

    tokens: int
    nodes: int
    forward_ms: float
    drafting_ms: float


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """An answer and what it took.

    Args:
        reading_ms: from the question to the first token.
        steps: all that came after it.
    """

    tokens: tuple[int, ...]
    reading_ms: float
    steps: tuple[LocalStep, ...]

    @property
    def stepping_ms(self) -> float:
        """Time of the tokens after the first."""
        return sum(step.forward_ms + step.drafting_ms for step in self.steps)


class LocalServer:
    """Answers questions with the server's own parts.

    Args:
        stepper: its first source drafts.
        end_of_text: token ids that end an answer; `decode`: the text of some tokens.
        schedule: what time is worth.
    """

    def __init__(
        self,
        stepper: Stepper,
        limits: SessionLimits,
        end_of_text: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        schedule: Schedule[LocalSession],
    ) -> None:
        self.stepper = stepper
        self.schedule = schedule
        self.drafts = ServerDrafts()
        self._limits = limits
        self._end_of_text = end_of_text
        self._decode = decode

    def ask(self, prompt: Sequence[int], settings: AnswerSettings, *, drafts: bool) -> LocalAnswer:
        """The whole answer to a new conversation's first turn.

        Args:
            drafts: whether the server drafts.

        Raises:
            DataError: no source drafts.
            Exception: whatever the target raises.
        """
        session = Session(self._limits, end_of_text=self._end_of_text, decode=self._decode, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), tuple(prompt), settings))
        local = LocalSession(self, session, drafts=drafts)
        began = time.perf_counter()
        reading_ms, steps = 0.0, []
        while session.phase is Phase.ANSWERING:
            session.on_ack(len(session.tokens))
            step = local.step()
            if reading_ms and step is not None:
                steps.append(step)
            elif step is not None:
                reading_ms = 1e3 * (time.perf_counter() - began)
        return LocalAnswer(tuple(session.tokens[len(prompt) :]), reading_ms, tuple(steps))


class LocalSession:
    """One conversation of a `LocalServer`: what its tensors hold, and how much of the text its drafter knows."""

    def __init__(self, server: LocalServer, session: Session, *, drafts: bool) -> None:
        self.session = session
        self._server = server
        self._drafts = drafts
        self._known = 0
        self._tensors = server.stepper.new_tensors()
        if not drafts:
            return
        source = server.stepper.find_source(b"")
        if source is None or source.drafter is None:
            raise DataError("No drafter is loaded here.", hint="Load the target with a drafter.")
        self._tensors.keep_rows(source, server.stepper.kept_widths(source, {}, drafts=True))

    def step(self) -> LocalStep | None:
        """The next forward; None: it read a piece of the prompt and chose nothing."""
        session, schedule, drafts = self.session, self._server.schedule, self._server.drafts
        plan = session.plan_step()
        if plan is None:
            raise DataError("An answer under way has nothing to do.", hint="Report this.")
        work = DraftedWork(self._tensors, plan, order=self._order(plan))
        drafting_ms = drafts.extend([work], TimePrice(schedule.rate(1), schedule.cost.line()))
        began = time.perf_counter()
        [outcome] = self._server.stepper.verify_all([work])
        forward_ms = 1e3 * (time.perf_counter() - began)
        plan, work.outcome = work.plan, outcome
        drafts.learn([work])
        if isinstance(outcome, Exception):
            raise outcome
        if not isinstance(outcome, Verification):
            session.on_prefilled(plan)
            return None
        taken = len(outcome.taken)
        session.on_verified(plan, outcome)
        if len(plan.feed) == 1:
            schedule.on_forward(Rows(1, 1, len(plan.tree)), forward_ms, taken, drafting_ms)
        return LocalStep(taken, len(plan.tree), forward_ms, drafting_ms)

    def _order(self, plan: StepPlan) -> DraftOrder | None:
        """What the engine would tell its drafter before this forward; None: nothing."""
        under_way = plan.chooses and len(plan.feed) == 1
        if not (self._drafts and under_way and self._server.schedule.cost.known):
            return None
        known, tokens = self._known, self.session.tokens
        self._known = len(tokens)
        return DraftOrder(known, tokens[known:], 0.0, self.session.most_nodes)
