"""All ways to draft on one device: the server's own steps in this process, in the order of its engine.

One answer at a time, without link and stream.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from moa_server.drafting.draft_decision import DraftOrder, MemorySource, OwnDrafter
from moa_server.drafting.forward_cost import TORCH, RowShares
from moa_server.engine.schedule import HasSession, Rows, Schedule
from moa_server.engine.stepper import ServerDrafts, SessionTensors, Stepper, Work
from moa_server.loading import check_drafter, memory_source, with_drafters
from moa_server.session.session import Session, SessionLimits, SessionPhase
from moa_server.session.verification import StepPlan, Verification
from moa_server.verifier import Target
from moa_shared.drafter.checkpoint import SHIPPED_DRAFTERS, Checkpoint, ngrams_for, shipped_drafter
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.drafts import ConversationDrafter, TreeShape, draft_chain, draft_tree
from moa_shared.drafting.guesses import LOOKUP_LONGEST, TextGuesser
from moa_shared.errors import ConfigError, DataError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.files import end_of_text
from moa_shared.programs.machine import ms_since
from moa_shared.programs.progress import Progress
from moa_shared.protocol.messages import AnswerSettings, Plane
from moa_shared.protocol.messages import Ask as AskMessage
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from moa_bench.harness.oracle import SECOND_GUESS, OracleDrafter, Script
from moa_bench.harness.stage import load_level
from moa_bench.registry import SingleEffort
from moa_bench.suites.single.tables import PLAIN


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
    text = TextGuesser(longest=LOOKUP_LONGEST)

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


LOOKUP = "prompt look-up"
# Of a plain step that a draft step takes: one layer of 32, and a head of 32,000 tokens, as EAGLE-3's for an 8B.
DRAFT_SHARE = 0.05
CHAIN, TREE, SERVED = "chain", "tree", "as served"


@dataclass(frozen=True, slots=True)
class LocalEngine:
    target: Target  # loaded once
    rules: SessionRules
    step_ms: float  # of a plain step, until the first ones are measured
    row_shares: RowShares  # what further rows add

    def plain(self) -> Ask:
        return LocalServer(Stepper(self.target), self.rules).ask

    def served(self, sources: Sequence[MemorySource]) -> Ask:
        """Answers as `moa-server serve` gives them, with drafts that grow while they pay."""
        schedule, server = Schedule[HasSession](self.row_shares, self.step_ms), ServerDrafts()
        return LocalServer(
            Stepper(self.target, sources),
            self.rules,
            lambda session, tensors, most: GrowingDrafts(session, tensors, server, schedule),
            sources[0],
        ).ask

    def copying(self, nodes: int) -> Ask:
        return LocalServer(
            Stepper(self.target),
            self.rules,
            lambda session, tensors, most: FixedDrafts(session, most, copied_chains(nodes)),
        ).ask

    def drafting(
        self, new: Callable[[], ConversationDrafter], shape: TreeShape | int, source: MemorySource | None = None
    ) -> Ask:
        return LocalServer(
            Stepper(self.target, [source] if source is not None else []),
            self.rules,
            lambda session, tensors, most: FixedDrafts(
                session, most, drafter_drafts(new(), shape, tensors, source, self.rules.sampling)
            ),
            source,
        ).ask


def load_engine(files: ModelFiles, level: str, progress: Progress, sampling: Sampling) -> LocalEngine:
    execution = load_level(files, level, progress)
    target, test, tokenizer = execution.target, execution.test, load_tokenizer(files)
    limits = SessionLimits(target.context_length, target.vocab_size)
    return LocalEngine(
        target,
        SessionRules(limits, end_of_text(files, tokenizer.eos_token_id), tokenizer.shown, sampling),
        test.step_ms if test is not None else 100.0,
        RowShares.of_times(test.step_ms, test.times) if test is not None else TORCH,
    )


def methods_of(
    engine: LocalEngine,
    files: ModelFiles,
    drafters: Mapping[str, Checkpoint],
    effort: SingleEffort,
) -> dict[str, Ask]:
    """All methods by name, plain serving first; `drafters` are by the names that tables give them."""
    methods = {PLAIN: engine.plain(), LOOKUP: engine.copying(effort.copies)}
    tree = TreeShape(effort.depth, effort.breadth, effort.nodes)
    ngrams = ngrams_for(files.fingerprint)
    reader = WeightReader(files)
    for name, checkpoint in drafters.items():
        source, states = memory_source(checkpoint, engine.target), checkpoint.states(reader)
        methods[f"{name}: {CHAIN}"] = engine.drafting(states, effort.chain, source)
        methods[f"{name}: {TREE}"] = engine.drafting(states, tree, source)
        if source is not None:
            sources = with_drafters([(source, checkpoint)], files, ngrams, load_first=False)
            methods[f"{name}: {SERVED}"] = engine.served(sources)
    return methods


def oracle_methods(engine: LocalEngine, effort: SingleEffort) -> dict[str, Ask]:
    """Plain serving, and oracles of each acceptance that replay what it wrote last: of a question that it answers
    before them. Each as a chain, and as served; of the best, trees too.
    """
    plain, text = engine.plain(), [0]

    def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
        answer = plain(prompt, most)
        text[:] = [*prompt, *answer.tokens]
        return answer

    def new(acceptance: float, second: float) -> OracleDrafter:
        script = Script(tuple(text), acceptance, 0, engine.target.vocab_size, second)
        return OracleDrafter(script, DRAFT_SHARE * engine.step_ms)

    def blind(new: Callable[[], ConversationDrafter]) -> MemorySource:
        """Rows that say nothing, for a drafter that needs none."""
        return MemorySource(lambda rows: np.zeros((len(rows), 1), np.float32), 1, None, drafter=OwnDrafter(new, 1))

    found: dict[str, Ask] = {PLAIN: ask, LOOKUP: engine.copying(effort.copies)}
    for acceptance in effort.acceptances:
        once = partial(new, acceptance, 0.0)
        found[f"oracle, {acceptance:g}: {CHAIN}"] = engine.drafting(once, effort.chain)
        found[f"oracle, {acceptance:g}: {SERVED}"] = engine.served([blind(once)])
        if acceptance == max(effort.acceptances) and 0 < acceptance < 1:
            twice, tree = partial(new, acceptance, SECOND_GUESS), TreeShape(effort.depth, 2, effort.nodes)
            found[f"oracle, {acceptance:g}, trees: {TREE}"] = engine.drafting(twice, tree)
            found[f"oracle, {acceptance:g}, trees: {SERVED}"] = engine.served([blind(twice)])
    return found


def load_drafters(files: ModelFiles, named: Mapping[str, Path]) -> dict[str, Checkpoint]:
    """The drafters to measure; those that come with moa where none is named."""
    if any(str(path).startswith("companion:") for path in named.values()):
        said = "Version 0.2.0 was the last with companions in `moa-bench single`."
        raise ConfigError(said, hint="`moa-bench alone` measures them.")
    if named:
        return {name: check_drafter(find_drafter(str(path), files), files) for name, path in named.items()}
    shipped = [shipped_drafter(files.fingerprint, name) for name in SHIPPED_DRAFTERS]
    checkpoints = [check_drafter(path, files) for path in shipped if path is not None]
    return {checkpoint.config.traits.method(checkpoint.config): checkpoint for checkpoint in checkpoints}
