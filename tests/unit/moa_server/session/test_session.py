import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_client.conversation.conversation import Conversation
from moa_server.session.session import Backlog, Session, SessionLimits, SessionPhase
from moa_server.session.verification import StepPlan, Verification
from moa_shared.errors import ContextLengthError, ProtocolError, TokenRangeError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish, FinishRule
from moa_shared.protocol.messages import Ask, Draft, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.tree import DraftTree

from tests.support.counted import CountedList, TouchedTokens
from tests.support.skipping import examples

VOCAB = 5
END_OF_TEXT = 4
CONTEXT = 60
LIMITS = SessionLimits(CONTEXT, VOCAB, draft_nodes=6, prefill_chunk=4, run_ahead_tokens=5)
PLAIN = AnswerSettings(max_tokens=12)


def decode(tokens: Sequence[int]) -> str:
    return "".join("abcde"[token] for token in tokens)


def choose(tokens: Sequence[int]) -> int:
    """The toy target: the next token is a function of all tokens before it."""
    value = PrefixHashes(tokens).at(len(tokens))
    return END_OF_TEXT if value % 23 == 0 else value // 23 % 4


def chosen_by(plan: StepPlan, tokens: Sequence[int]) -> list[int]:
    """What the target chooses in a forward over a prefix, after the last of `feed` and after each node."""
    paths = [[plan.tree.tokens[node] for node in plan.tree.path_to(node)] for node in range(len(plan.tree))]
    return [choose([*tokens, *path]) for path in [[], *paths]]


def plain_answer(prompt: Sequence[int], settings: AnswerSettings) -> tuple[list[int], Finish]:
    rule = FinishRule(settings, len(prompt), CONTEXT, frozenset({END_OF_TEXT}), decode)
    answer: list[int] = []
    while True:
        taken, finish = rule.cut(answer, [choose([*prompt, *answer])])
        answer += taken
        if finish is not Finish.UNFINISHED:
            return answer, finish


SentVerdict = tuple[int, Sequence[int], Finish]


class Harness:
    """A session with the engine's part done at once, and a model of the KV cache that checks what is claimed of it."""

    def __init__(self, *, run_ahead: bool = False, limits: SessionLimits = LIMITS) -> None:
        self.session = Session(limits, end_of_text=frozenset({END_OF_TEXT}), decode=decode, run_ahead=run_ahead)
        self.kv: list[int] = []

    def ask(self, message: Ask) -> Backlog:
        return self.session.on_ask(message)

    def draft(self, message: Draft) -> None:
        self.session.on_draft(message)

    def forward(self, plan: StepPlan) -> list[int]:
        """Runs work as the inference thread would; the tokens chosen."""
        assert plan.cached <= len(self.kv), "the cache does not hold what the session thinks"
        self.kv = [*self.kv[: plan.cached], *plan.feed]
        assert len(self.kv) + max(plan.tree.depths, default=0) <= CONTEXT
        return chosen_by(plan, self.kv)

    def begin(self) -> tuple[StepPlan, Verification | None] | None:
        """Runs the forward whose turn came; the session hears of it in `finish`."""
        plan = self.session.plan_step()
        if plan is None:
            return None
        chosen = self.forward(plan)
        if not plan.chooses:
            return plan, None
        verification = plan.verify(chosen)
        self.kv += [plan.tree.tokens[node] for node in verification.kept]
        return plan, verification

    def finish(self, plan: StepPlan, verification: Verification | None) -> SentVerdict | None:
        """Tells the session of a forward; the verdict (base, tokens, finish) that it gives, if any."""
        base = len(self.session.tokens)
        if verification is None:
            self.session.on_prefilled(plan)
            return None
        return (base, verification.taken, verification.finish) if self.session.on_verified(plan, verification) else None

    def step(self) -> SentVerdict | None:
        """Forwards up to the next verdict; None if the session waits."""
        while (begun := self.begin()) is not None:
            verdict = self.finish(*begun)
            self.check()
            if verdict is not None:
                return verdict
        return None

    def check(self) -> None:
        session = self.session
        assert self.kv[: session.cached] == session.tokens[: session.cached]
        assert session.hashes.at(len(session.tokens)) == PrefixHashes(session.tokens).at(len(session.tokens))
        if session.phase is SessionPhase.ANSWERING:
            assert session.cached < len(session.tokens)


def asked(prompt: Sequence[int], how: AnswerSettings = PLAIN, **options: Any) -> Harness:
    harness = Harness(**options)
    harness.ask(Ask(1, 0, 0, tuple(prompt), how, len(prompt)))
    return harness


# ---------------------------------------------------------------- examples


def test_without_run_ahead_it_waits_for_a_draft() -> None:
    harness = asked([1, 2])
    assert harness.step() is not None
    assert harness.step() is None
    tokens = harness.session.tokens
    harness.session.on_draft(
        Draft(
            epoch=0,
            base=len(tokens),
            prefix_hash=harness.session.hashes.short_at(len(tokens)),
            first_node=0,
            tokens=(),
            parents=(),
        )
    )
    assert harness.step() is not None
    assert harness.step() is None


def test_run_ahead_is_bounded_by_what_the_client_holds() -> None:
    harness = asked([1, 2], AnswerSettings(ignore_end_of_text=True), run_ahead=True)
    steps = 0
    while harness.step() is not None:
        steps += 1
    assert steps == LIMITS.run_ahead_tokens
    harness.session.on_ack(4)
    steps = 0
    while harness.step() is not None:
        steps += 1
    assert steps == 2


def test_work_that_was_overtaken_changes_nothing() -> None:
    harness = asked([1, 2])
    plan = harness.session.plan_step()
    assert plan is not None
    verification = plan.verify(harness.forward(plan))
    assert harness.session.on_stop()
    before = list(harness.session.tokens)
    assert not harness.session.on_verified(plan, verification)
    assert harness.session.tokens == before
    assert not harness.session.on_stop()


class Colliding(PrefixHashes):
    """Hashes that are all the same, as an attacker may find texts whose are."""

    def at(self, length: int) -> int:
        super().at(length)
        return 0


def test_what_was_read_of_another_text_with_the_same_hash_is_not_kept() -> None:
    harness = Harness()
    session = harness.session
    session.hashes = Colliding()
    session.on_ask(Ask(1, 0, 0, (1, 2, 3, 0, 1, 2), PLAIN, 6))
    begun = harness.begin()  # reads the first four
    assert begun is not None
    shared = session.tokens
    session.on_ask(Ask(2, 0, 0, (3, 3, 3, 3, 1, 2), PLAIN, 6))
    assert not session.on_prefilled(begun[0])
    assert session.cached == 0
    assert not session.on_adopted(4, shared, session.cache_version)
    assert session.cached == 0
    session.on_ask(Ask(3, 0, 0, (1, 2, 3, 0, 1, 2), PLAIN, 6))
    assert not session.on_prefilled(begun[0])
    assert session.cached == 4  # the same tokens again


def test_a_question_that_cannot_be_asked_is_refused_before_the_session_changes() -> None:
    harness = Harness()
    session = harness.session
    session.on_ask(Ask(1, 0, session.hashes.at(0), (1, 2, 3), PLAIN, 3))
    harness.step()
    before = (list(session.tokens), session.phase, session.version, session.cached)
    other = PrefixHashes([2]).at(1)
    for tokens, ask, error in (
        ([1, 2], Ask(2, 2, other, (1,), PLAIN, 3), ProtocolError),
        ([1, 2], Ask(2, 3, PrefixHashes([1, 2, 3]).at(3), (1,), PLAIN, 4), ProtocolError),  # beyond what it opens with
        ([2], Ask(2, 1, other, (VOCAB,), PLAIN, 2), TokenRangeError),
        ([2], Ask(2, 1, other, (1,) * CONTEXT, PLAIN, 2), ContextLengthError),
    ):
        with pytest.raises(error):
            session.check_open(tokens, ask)
        assert (list(session.tokens), session.phase, session.version, session.cached) == before
    session.check_open([2], Ask(2, 1, other, (1,), PLAIN, 2))


def test_a_prefill_that_was_overtaken_changes_nothing() -> None:
    harness = asked([1, 2, 3] * 3)
    plan = harness.session.plan_step()
    assert plan is not None
    harness.session.on_open([])
    assert not harness.session.on_prefilled(plan)
    assert harness.session.cached == 0


def test_a_resume_of_an_answer_that_ended_meanwhile_gets_all_of_it() -> None:
    prompt = [3, 1]
    expected, finish = plain_answer(prompt, AnswerSettings(max_tokens=4))
    harness = asked(prompt, AnswerSettings(max_tokens=4), run_ahead=True)
    while harness.step() is not None:
        pass
    assert harness.session.on_open(prompt, asks=True) == 2
    backlog = harness.ask(Ask(1, 2, PrefixHashes(prompt).at(2), (), AnswerSettings(max_tokens=4), 2))
    assert backlog == Backlog(2, tuple(expected), finish)
    assert harness.step() is None


@pytest.mark.parametrize(
    ("answer", "how", "finish"),
    [
        ([1, 2, 1], AnswerSettings(max_tokens=3), Finish.MAX_TOKENS),
        ([1, 2, 1], AnswerSettings(max_tokens=2), Finish.MAX_TOKENS),
        ([1, END_OF_TEXT], PLAIN, Finish.END_OF_TEXT),
        ([1, 2], AnswerSettings(stop=(decode([1, 2]),)), Finish.STOP),
        ([1] * (CONTEXT - 2), AnswerSettings(ignore_end_of_text=True), Finish.CONTEXT),
        ([1, 2] * 256, AnswerSettings(loop_guard=True), Finish.LOOP),
    ],
)
def test_an_ask_whose_answer_has_ended_chooses_nothing(answer: list[int], how: AnswerSettings, finish: Finish) -> None:
    """Resumed on a server that knows nothing of it: not one more token."""
    limits = LIMITS if len(answer) < CONTEXT else SessionLimits(1000, VOCAB)
    harness, held = Harness(run_ahead=True, limits=limits), [3, 1, *answer]
    harness.session.on_open(held, asks=True)
    backlog = harness.ask(Ask(7, len(held), PrefixHashes(held).at(len(held)), (), how, 2))
    assert backlog == Backlog(len(held), (), finish)
    assert harness.step() is None
    assert harness.session.ask_id == 7


def test_a_repeated_ask_says_nothing_again() -> None:
    harness = asked([3, 1], run_ahead=True)
    harness.step()
    assert not harness.ask(Ask(1, 0, 0, (3, 1), PLAIN, 2)).is_news
    assert harness.ask(Ask(2, 0, 0, (3, 1), PLAIN, 2)) == Backlog(2)  # another question begins again
    assert harness.session.tokens == [3, 1]


def test_a_resume_with_other_settings_begins_again() -> None:
    prompt = [3, 1]
    harness = asked(prompt, AnswerSettings(max_tokens=4), run_ahead=True)
    harness.step()
    harness.session.on_open(prompt, asks=True)
    backlog = harness.ask(Ask(1, 2, PrefixHashes(prompt).at(2), (), AnswerSettings(max_tokens=5), 2))
    assert backlog.tokens == ()
    assert harness.session.tokens == prompt


def test_a_new_stream_counts_its_epochs_from_the_start() -> None:
    harness = asked([1, 2])
    harness.step()
    tokens = list(harness.session.tokens)
    base, prefix = len(tokens), PrefixHashes(tokens).short_at(len(tokens))
    harness.draft(Draft(9, base, prefix, 0, (1,), ()))
    harness.session.on_open(tokens)
    harness.ask(Ask(1, base, PrefixHashes(tokens).at(base), (), PLAIN, 2))
    harness.draft(Draft(0, base, prefix, 0, (2,), ()))
    assert harness.session.pending.usable(harness.session.tokens) == DraftTree.chain([2])


def test_forgotten_cache_is_read_again() -> None:
    harness = asked([1, 2, 3])
    harness.step()
    harness.session.forget_cache(0)
    harness.kv = []
    harness.session.on_open(list(harness.session.tokens))
    held = harness.session.tokens
    harness.ask(Ask(1, len(held), PrefixHashes(held).at(len(held)), (), PLAIN, 3))
    assert harness.step() is not None


# ---------------------------------------------------------------- what is refused


def test_a_conversation_longer_than_the_context() -> None:
    harness = Harness()
    with pytest.raises(ContextLengthError, match="with at least one for the answer"):
        harness.session.on_open([1] * (CONTEXT + 1))
    harness.session.on_open([1] * CONTEXT)
    with pytest.raises(ContextLengthError, match="with at least one for the answer"):
        harness.ask(Ask(1, 0, 0, (1,) * CONTEXT, PLAIN, CONTEXT))


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_tokens_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(TokenRangeError):
        Harness().session.on_open([1, token])
    with pytest.raises(TokenRangeError):
        asked([token])


@pytest.mark.parametrize(
    "message",
    [
        Ask(1, 3, 0, (1,), PLAIN, 4),  # beyond the end
        Ask(1, 2, 1, (1,), PLAIN, 3),  # another conversation
        Ask(1, 0, 0, (), PLAIN, 0),  # nothing at all
        Ask(1, 0, 0, (1, 2), PLAIN, 3),  # an answer that starts later
    ],
)
def test_asks_that_do_not_continue(message: Ask) -> None:
    harness = Harness()
    harness.session.on_open([1, 2])
    with pytest.raises(ProtocolError):
        harness.ask(message)


def test_a_client_cannot_hold_more_than_was_committed() -> None:
    harness = asked([1, 2])
    with pytest.raises(ProtocolError):
        harness.session.on_ack(3)


# ---------------------------------------------------------------- any schedule gives the same text


def guess_tree(conversation: Conversation, rng: random.Random, right: float) -> DraftTree:
    """A random tree below the newest committed token; each node is right with probability `right`."""
    tokens: list[int] = []
    parents: list[int] = []
    paths: list[list[int]] = [[]]
    for node in range(rng.randrange(8)):
        parent = rng.randrange(-1, node)
        path = paths[parent + 1]
        token = choose([*conversation.tokens, *path]) if rng.random() < right else rng.randrange(VOCAB)
        tokens.append(token)
        parents.append(parent)
        paths.append([*path, token])
    return DraftTree(tuple(tokens), tuple(parents))


class Link:
    """Frames on their way from client to server, and verdicts on their way back, both late by a random time."""

    def __init__(self) -> None:
        self.up: deque[Ask | Draft] = deque()
        self.down: deque[tuple[int, int, Sequence[int], Finish]] = deque()


def run_schedule(rng: random.Random, how: AnswerSettings, *, run_ahead: bool, right: float) -> Conversation:
    """An answer under a random schedule: late and repeated frames, cuts with resume, restarts of the server."""
    harness = Harness(run_ahead=run_ahead)
    conversation = Conversation(VOCAB)
    link = Link()
    prompt = [rng.randrange(4) for _ in range(rng.randrange(1, 9))]
    link.up.append(conversation.ask(prompt, how))
    finish = Finish.UNFINISHED
    flying = None  # the forward that runs
    for _ in range(5000):
        if finish is not Finish.UNFINISHED:
            return conversation
        event = rng.random()
        if event < 0.35 and link.up:
            frame = link.up.popleft()
            for _ in range(1 if rng.random() < 0.8 else 2):
                deliver_up(harness, link, frame)
        elif event < 0.6 and link.down:
            base, prefix_hash, tokens, end = link.down[0] if rng.random() < 0.2 else link.down.popleft()
            finish = conversation.commit_verdict(Verdict(conversation.ask_id, base, prefix_hash, tokens, end)).finish
        elif event < 0.85:
            if flying is None:
                flying = harness.begin()
            else:
                send_verdict(harness, link, harness.finish(*flying))
                flying = None
        elif event < 0.97:
            if rng.random() < 0.3:
                conversation.in_flight.extend_draft([rng.randrange(VOCAB)])
                link.up.append(conversation.in_flight.draft_message(conversation.in_flight.end - 1))
            else:
                link.up.append(conversation.in_flight.propose(guess_tree(conversation, rng, right)))
        else:
            link = Link()  # the stream breaks: what was on its way is lost
            if rng.random() < 0.3:
                harness, flying = Harness(run_ahead=run_ahead), None  # another server
            conversation.in_flight.drop()
            asks = rng.random() < 0.5
            harness.session.on_open(conversation.tokens, asks=asks)
            if not asks:
                link.up.append(conversation.ask_from(len(conversation.tokens)))
            else:
                deliver_up(harness, link, conversation.ask_from(len(conversation.tokens)))
        harness.check()
    raise AssertionError("the answer did not end")


def deliver_up(harness: Harness, link: Link, frame: Ask | Draft) -> None:
    if isinstance(frame, Ask):
        backlog = harness.ask(frame)
        if backlog.tokens:
            send_verdict(harness, link, (backlog.base, backlog.tokens, backlog.finish))
    else:
        harness.draft(frame)


def send_verdict(harness: Harness, link: Link, verdict: SentVerdict | None) -> None:
    if verdict is not None:
        base, tokens, finish = verdict
        link.down.append((base, harness.session.hashes.short_at(base), tokens, finish))


@given(
    seed=st.integers(0, 2**32),
    run_ahead=st.booleans(),
    right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    how=st.sampled_from(
        [PLAIN, AnswerSettings(stop=("abc", "dd")), AnswerSettings(max_tokens=30, ignore_end_of_text=True)]
    ),
)
@settings(max_examples=examples(400))
def test_the_text_depends_on_no_schedule(seed: int, run_ahead: bool, right: float, how: AnswerSettings) -> None:
    conversation = run_schedule(random.Random(seed), how, run_ahead=run_ahead, right=right)
    prompt = conversation.tokens[: conversation.answer_start]
    assert list(conversation.answer) == plain_answer(prompt, how)[0]


@pytest.mark.parametrize("before", [1, 1000, 20_000])
def test_a_plain_step_reads_no_more_of_a_long_answer(before: int) -> None:
    session = Session(SessionLimits(100_000, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), [1], AnswerSettings(stop=("x",)), 0))
    while len(session.tokens) < before:
        step = session.plan_step()
        assert step is not None
        session.on_ack(len(session.tokens))
        session.on_verified(step, step.verify([7]))
    session.on_ack(len(session.tokens))
    session.tokens = CountedList(session.tokens)
    plan = session.plan_step()
    assert plan is not None
    assert session.on_verified(plan, plan.verify([7]))
    assert session.tokens.read <= 300  # the window of stop strings and the newest token


def test_slices_of_a_prompt_read_it_once() -> None:
    limits = SessionLimits(100_000, 50, prefill_chunk=100)
    session = Session(limits, end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), [1] * 10_000, AnswerSettings(), 0))
    session.tokens = CountedList(session.tokens)
    slices = 0
    while (plan := session.plan_step()) is not None and not plan.chooses:
        assert session.on_prefilled(plan)
        slices += 1
    assert slices == 99
    assert session.tokens.read <= 10_000 + 100


def test_a_long_answer_ends_where_it_should() -> None:
    for wanted, finish in (
        (AnswerSettings(max_tokens=600), Finish.MAX_TOKENS),
        (AnswerSettings(max_tokens=900, stop=("z",)), Finish.STOP),
        (AnswerSettings(max_tokens=900, loop_guard=True), Finish.LOOP),
    ):
        session = Session(SessionLimits(2000, 50), end_of_text=frozenset(), decode=decode_last, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), [1], wanted, 0))
        verification = None
        while session.phase is SessionPhase.ANSWERING:
            plan = session.plan_step()
            assert plan is not None
            verification = plan.verify([26 if len(session.tokens) == 600 and wanted.stop else 7])
            session.on_verified(plan, verification)
            session.on_ack(len(session.tokens))
        assert verification is not None
        assert (len(session.tokens), verification.finish) == (513 if finish is Finish.LOOP else 601, finish)


def decode_last(tokens: Sequence[int]) -> str:
    return "".join(chr(96 + token) for token in tokens)


def test_a_draft_without_an_answer_is_not_looked_at_token_by_token() -> None:
    server = Harness().session
    tokens = TouchedTokens(100_000)
    server.on_draft(Draft(epoch=0, base=0, prefix_hash=0, first_node=0, tokens=tokens, parents=TouchedTokens(100_000)))
    assert server.pending.take_stale() == 100_000
    assert tokens.touched == 0
