"""The server's own steps in this process, in the order of its engine: one answer at a time, without link and stream."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moa_server.drafting.draft_decision import DraftOrder, MemorySource
from moa_server.engine.schedule import HasSession, Rows, Schedule
from moa_server.engine.stepper import ServerDrafts, SessionTensors, Stepper, Work
from moa_server.session.session import Session, SessionLimits, SessionPhase
from moa_server.session.verification import StepPlan, Verification
from moa_shared.drafting.base import ConversationDrafter
from moa_shared.drafting.dynamic_tree import TreeShape, draft_chain, draft_tree
from moa_shared.drafting.guesses import TextIndex
from moa_shared.errors import DataError
from moa_shared.programs.machine import ms_since
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask as AskMessage
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """An answer and what it took."""

    tokens: tuple[int, ...]
    first_ms: float  # from the question to the first token
    steady_ms: float  # from there to the last
    forwards: int | None = None  # after the first token; None: the method does not say
    nodes: int | None = None  # verified in them
    cpu_s: float = 0.0  # of the process that answered, its reading of the prompt included


@dataclass(frozen=True, slots=True)
class SessionRules:
    limits: SessionLimits
    end_of_text: frozenset[int]  # token ids that end an answer
    decode: Callable[[Sequence[int]], str]  # the text of some tokens
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen


class LocalDrafts:
    """What is drafted for one answer: nothing."""

    def extend(self, plan: StepPlan) -> StepPlan:
        return plan

    def learn(self, decided: Verification | None, forward_ms: float) -> None:
        """Learns what the forward decided; None: it read a piece of the prompt."""


Ask = Callable[[Sequence[int], int], MethodAnswer]  # the prompt's tokens, and how many new ones at most
NewDrafts = Callable[[Session, SessionTensors, int], LocalDrafts]  # for an answer of so many tokens at most


class LocalServer:
    """A server's stepper and sessions; `source` has the rows that the drafts need, if any."""

    def __init__(
        self,
        stepper: Stepper,
        rules: SessionRules,
        new_drafts: NewDrafts = lambda session, tensors, most: LocalDrafts(),
        source: MemorySource | None = None,
    ) -> None:
        self.stepper = stepper
        self._rules = rules
        self._new_drafts = new_drafts
        self._source = source

    def ask(self, prompt: Sequence[int], most: int) -> MethodAnswer:
        """The whole answer to a new conversation's first turn, of at most so many tokens."""
        rules, settings = self._rules, AnswerSettings(self._rules.sampling, max_tokens=most)
        session = Session(rules.limits, end_of_text=rules.end_of_text, decode=rules.decode, run_ahead=True)
        session.on_ask(AskMessage(1, 0, session.hashes.at(0), tuple(prompt), settings))
        tensors = self.stepper.new_tensors()
        if self._source is not None:
            tensors.keep_rows(self._source, self.stepper.kept_widths(self._source, {}, drafts=True))
        drafts = self._new_drafts(session, tensors, most)
        length, began, first_ms = len(session.tokens), time.perf_counter(), 0.0
        forwards, nodes, steady_ms = 0, 0, 0.0
        while session.phase is SessionPhase.ANSWERING:
            session.on_ack(len(session.tokens))
            step_began = time.perf_counter()
            if (planned := session.plan_step()) is None:
                raise DataError("An answer under way has nothing to do.", hint="Report this.")
            plan = drafts.extend(planned)
            drafting_ms, forward_began = ms_since(step_began), time.perf_counter()
            [outcome] = self.stepper.verify_all([Work(tensors, plan)])
            forward_ms = ms_since(forward_began)
            if isinstance(outcome, Exception):
                raise outcome
            decided = outcome if isinstance(outcome, Verification) else None
            if decided is None:
                session.on_prefilled(plan)
            else:
                session.on_verified(plan, decided)
            drafts.learn(decided, forward_ms)
            if decided is not None and first_ms:
                forwards, nodes = forwards + 1, nodes + len(plan.tree)
                steady_ms += drafting_ms + forward_ms
            elif decided is not None:
                first_ms = ms_since(began)
        return MethodAnswer(tuple(session.tokens[length:]), first_ms, steady_ms, forwards, nodes)


class GrowingDrafts(LocalDrafts):
    """Drafts as `moa-server serve` does, while it pays; server and schedule last from one answer to the next."""

    def __init__(
        self, session: Session, tensors: SessionTensors, server: ServerDrafts, schedule: Schedule[HasSession]
    ) -> None:
        self._session, self._tensors, self._server, self._schedule = session, tensors, server, schedule
        self._known = 0  # tokens that the drafter has been told of
        self._drafting_ms = 0.0

    def extend(self, plan: StepPlan) -> StepPlan:
        session, schedule, order = self._session, self._schedule, None
        if plan.chooses and len(plan.feed) == 1 and schedule.cost.known:
            order = DraftOrder(self._known, session.tokens[self._known :], 0.0, session.most_nodes)
            self._known = len(session.tokens)
        self._work = Work(self._tensors, plan, order)
        self._drafting_ms = self._server.deepen([self._work], schedule.draft_price(1), schedule.cost.line)
        return self._work.plan

    def learn(self, decided: Verification | None, forward_ms: float) -> None:
        work = self._work
        work.outcome = decided
        self._server.learn_from([work])
        if decided is not None and len(work.plan.feed) == 1:
            rows = Rows(1, 1, len(work.plan.tree))
            self._schedule.on_forward(rows, forward_ms, len(decided.taken), self._drafting_ms)


Draft = Callable[[Sequence[int], int, int], DraftTree]
"""draft(tokens, cached, room): at most `room` nodes below a text, of which the target has read `cached` tokens."""


class FixedDrafts(LocalDrafts):
    """Drafts of a fixed size after the first token, as papers measure them."""

    def __init__(self, session: Session, most: int, draft: Draft) -> None:
        self._session, self._most, self._draft = session, most, draft
        self._prompt = len(session.tokens)

    def extend(self, plan: StepPlan) -> StepPlan:
        session = self._session
        if not (written := len(session.tokens) - self._prompt):
            return plan
        room = 0 if written + 1 == self._most else session.most_nodes  # no draft makes the last sooner
        tree = self._draft(session.tokens, session.cached, room)
        return (plan.pick(tree) if plan.chooses else None) or plan


def copied_chains(nodes: int) -> Draft:
    """Prompt look-up: chains of up to `nodes` tokens that followed the newest ones before."""
    text = TextIndex()

    def draft(tokens: Sequence[int], cached: int, room: int) -> DraftTree:
        text.extend(tokens[len(text.tokens) :])
        return DraftTree.chain(text.continuation(min(nodes, room)))

    return draft


def drafter_drafts(
    drafter: ConversationDrafter,
    shape: TreeShape | int,
    tensors: SessionTensors,
    source: MemorySource | None,
    sampling: Sampling,
) -> Draft:
    """What a drafter guesses: trees of a shape, or chains of so many nodes; it reads the rows of `source`, if any."""
    planes = [] if source is None else [Plane.MEMORY, *([Plane.REUSED_STATE] if source.has_states else [])]
    read = 0

    def draft(tokens: Sequence[int], cached: int, room: int) -> DraftTree:
        nonlocal read
        drafter.extend(tokens[len(drafter.tokens) :])
        for plane in planes:
            append = drafter.append_memory if plane is Plane.MEMORY else drafter.append_reused_state
            append(read, tensors.read(plane, read, cached))
        read = cached
        if isinstance(shape, int):
            return draft_chain(drafter, min(shape, room), sampling)
        fitting = replace(shape, nodes=min(shape.nodes, room))
        return draft_tree(drafter, fitting, sampling) if room else DraftTree((), ())

    return draft
