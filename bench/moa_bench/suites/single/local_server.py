"""The server's own steps in this process: one answer at a time, without link, stream and event loop.

What the server does for a client that sends no drafts, in the order of its engine, and what each part of it takes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_server.engine.planning.schedule import HasSession, Rows, Schedule
from moa_server.engine.server_drafts import DraftedWork, DraftOrder, ServerDrafts, TimePrice
from moa_server.engine.stepper import MemorySource, SessionTensors, Stepper, Work
from moa_server.session.pending_draft import NO_DRAFT
from moa_server.session.session import Session, SessionLimits, SessionPhase
from moa_server.session.verification import StepPlan, Verification
from moa_shared.errors import DataError
from moa_shared.programs.elapsed import ms_since
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask

from moa_bench.suites.single.drafts import NewDrafts


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A forward of an answer under way."""

    tokens: int  # that it committed
    nodes: int  # that it verified
    forward_ms: float
    drafting_ms: float  # what came before the forward


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """An answer and what it took."""

    tokens: tuple[int, ...]
    reading_ms: float  # from the question to the first token
    steps: tuple[LocalStep, ...]  # all that came after it

    @property
    def stepping_ms(self) -> float:
        return sum(step.forward_ms + step.drafting_ms for step in self.steps)


@dataclass(frozen=True, slots=True)
class SessionRules:
    """What all sessions of a target have in common."""

    limits: SessionLimits
    end_of_text: frozenset[int]  # token ids that end an answer
    decode: Callable[[Sequence[int]], str]  # the text of some tokens


class InProcessServer:
    """A server's stepper and sessions, without drafts; the stepper's first source drafts."""

    def __init__(self, stepper: Stepper, rules: SessionRules) -> None:
        self.stepper = stepper
        self._rules = rules

    def _open(self, prompt: Sequence[int], settings: AnswerSettings) -> Session:
        rules = self._rules
        session = Session(rules.limits, end_of_text=rules.end_of_text, decode=rules.decode, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), tuple(prompt), settings))
        return session

    def _answer(self, session: Session, step: Callable[[], LocalStep | None]) -> LocalAnswer:
        """The whole answer; a step that gives None read a piece of the prompt and chose nothing."""
        length, began, reading_ms = len(session.tokens), time.perf_counter(), 0.0
        steps: list[LocalStep] = []
        while session.phase is SessionPhase.ANSWERING:
            session.on_ack(len(session.tokens))
            taken = step()
            if reading_ms and taken is not None:
                steps.append(taken)
            elif taken is not None:
                reading_ms = ms_since(began)
        return LocalAnswer(tuple(session.tokens[length:]), reading_ms, tuple(steps))

    def _verify(self, session: Session, tensors: SessionTensors, plan: StepPlan) -> tuple[Verification | None, float]:
        """Runs a forward; what it decided, and its milliseconds."""
        began = time.perf_counter()
        [outcome] = self.stepper.verify_all([Work(tensors, plan)])
        forward_ms = ms_since(began)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, Verification):
            session.on_verified(plan, outcome)
            return outcome, forward_ms
        session.on_prefilled(plan)
        return None, forward_ms


class GrowingServer(InProcessServer):
    """Drafts as `moa-server serve` does, while it pays.

    State: the schedule and what drafting has taken so far, which last from one answer to the next, as on a server.

    Args:
        schedule: what time is worth.
    """

    def __init__(self, stepper: Stepper, rules: SessionRules, schedule: Schedule[HasSession]) -> None:
        super().__init__(stepper, rules)
        self._schedule = schedule
        self._drafts = ServerDrafts()

    def ask(self, prompt: Sequence[int], settings: AnswerSettings, *, drafts: bool) -> LocalAnswer:
        """The whole answer to a new conversation's first turn; `drafts`: whether the server drafts."""
        session, tensors = self._open(prompt, settings), self.stepper.new_tensors()
        if drafts:
            source = self.stepper.find_source(b"")
            if source is None or source.drafter is None:
                raise DataError("No drafter is loaded here.", hint="Load the target with a drafter.")
            tensors.keep_rows(source, self.stepper.kept_widths(source, {}, drafts=True))
        known = 0  # tokens that the drafter has been told of

        def step() -> LocalStep | None:
            nonlocal known
            planned = _planned(session)
            order = None
            if drafts and planned.chooses and len(planned.feed) == 1 and self._schedule.cost.known:
                order = DraftOrder(known, session.tokens[known:], 0.0, session.most_nodes)
                known = len(session.tokens)
            work = DraftedWork(tensors, planned, order=order)
            drafting_ms = self._drafts.extend(
                [work], TimePrice(self._schedule.draft_price(1), self._schedule.cost.line())
            )
            decided, forward_ms = self._verify(session, tensors, work.plan)
            work.outcome = decided
            self._drafts.learn([work])
            if decided is None:
                return None
            taken, nodes = len(decided.taken), len(work.plan.tree)
            if len(work.plan.feed) == 1:
                self._schedule.on_forward(Rows(1, 1, nodes), forward_ms, taken, drafting_ms)
            return LocalStep(taken, nodes, forward_ms, drafting_ms)

        return self._answer(session, step)


class FixedServer(InProcessServer):
    """Verifies drafts of a fixed size.

    Args:
        source: of the rows that the drafts need; None: they need none.
    """

    def __init__(
        self, stepper: Stepper, rules: SessionRules, new_drafts: NewDrafts, source: MemorySource | None = None
    ) -> None:
        super().__init__(stepper, rules)
        self._new_drafts = new_drafts
        self._source = source

    def ask(self, prompt: Sequence[int], settings: AnswerSettings) -> LocalAnswer:
        """The whole answer to a new conversation's first turn."""
        session, tensors = self._open(prompt, settings), self.stepper.new_tensors()
        if self._source is not None:
            tensors.keep_rows(self._source, self.stepper.kept_widths(self._source, {}, drafts=True))
        drafts = self._new_drafts(tensors)

        def step() -> LocalStep | None:
            began, tree = time.perf_counter(), NO_DRAFT
            if written := len(session.tokens) - len(prompt):
                room = 0 if written + 1 == settings.max_tokens else session.most_nodes  # no draft makes the last sooner
                tree = drafts.draft(session.tokens, session.cached, room)
            plan = _planned(session)
            if plan.chooses and (picked := plan.pick(tree)) is not None:
                plan = picked
            drafting_ms = ms_since(began)
            decided, forward_ms = self._verify(session, tensors, plan)
            return None if decided is None else LocalStep(len(decided.taken), len(tree), forward_ms, drafting_ms)

        return self._answer(session, step)


def _planned(session: Session) -> StepPlan:
    plan = session.plan_step()
    if plan is None:
        raise DataError("An answer under way has nothing to do.", hint="Report this.")
    return plan
