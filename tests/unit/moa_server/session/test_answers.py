"""Answers over toy targets: of their form, with their chances and of the target's distribution, whatever is drafted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.session.session import Session, SessionLimits, SessionPhase
from moa_server.session.verification import NO_DRAFT, StepPlan, Verification
from moa_shared.errors import ConfigError
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish
from moa_shared.sampling.coupling import process_logits
from moa_shared.sampling.scores import TextBefore, adjusted, log_softmax
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling, TokenChances, WantedChances
from moa_shared.tree import DraftTree
from scipy import stats

from tests.support.toy_forms import END, TOKENS, begin, text_of
from tests.unit.moa_server.session.markov import PROMPT, VOCAB, MarkovModel, new_session, steps

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "b", "10"]}, "ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["ab", "a"]}, "maxItems": 3}},
    "required": ["kind", "ok", "tags"],
}  # fmt: skip
CONSTRAINT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
HI = tuple(b"Hi")
SETTINGS = AnswerSettings(Sampling(1.0, seed=5, constraint=CONSTRAINT), max_tokens=60)


def asked(settings: AnswerSettings = SETTINGS, held: tuple[int, ...] = ()) -> Session:
    """A session that is asked for an answer, of which the client holds some tokens already."""
    limits = SessionLimits(4000, len(TOKENS), prefill_chunk=4)
    session = Session(limits, end_of_text=frozenset({END}), decode=text_of, run_ahead=True)
    ask = Ask(1, 0, session.hashes.at(0), (*HI, *held), settings, answer_start=len(HI))
    session.on_ask(ask, begin(CONSTRAINT))
    return session


def table(seed: int) -> np.ndarray:
    """Logits after each token."""
    table = np.random.default_rng(seed).standard_normal((len(TOKENS), len(TOKENS)), np.float32)
    table[:, ord("]")] += 2  # so that lists end
    return table


def finish(
    session: Session, logits: np.ndarray, draft: Callable[[list[int]], DraftTree] | None = None
) -> tuple[list[int], Finish, int]:
    """The answer, why it ends, and in how many steps; without `draft`: of what the form forces."""

    def verify(plan: StepPlan) -> Verification:
        plan = plan if draft is not None else plan.with_forced()
        return plan.choose_tokens(logits[[plan.feed[-1], *plan.tree.tokens]], plan.allowed())

    drafted = (lambda: draft(session.tokens[len(HI) :])) if draft is not None else None
    done = [verification for _, verification in steps(session, verify, drafted)]
    return session.tokens[len(HI) :], done[-1].finish, len(done)


@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 1.0]))
def test_the_text_is_of_the_form_and_the_same_with_any_drafts(seed: int, temperature: float) -> None:
    chance, logits = random.Random(seed), table(seed)
    sampling = Sampling(temperature, seed=seed, presence_penalty=0.5, constraint=CONSTRAINT)
    settings = AnswerSettings(sampling, max_tokens=60)
    plain, why, _ = finish(asked(settings), logits, lambda _: NO_DRAFT)

    def drafted(written: list[int]) -> DraftTree:
        """Right and wrong guesses in a tree."""
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for node in range(chance.randrange(8)):
            parent = chance.randrange(-1, node)
            depth = 0 if parent < 0 else depths[parent] + 1
            right = plain[min(len(written) + depth, len(plain) - 1)]
            tokens.append(right if chance.random() < 0.7 else chance.randrange(len(TOKENS)))
            parents.append(parent)
            depths.append(depth)
        return DraftTree(tuple(tokens), tuple(parents))

    assert finish(asked(settings), logits, drafted)[:2] == (plain, why)
    if why is Finish.END_OF_TEXT:
        value = json.loads(text_of(plain))
        assert value["kind"] in ("ab", "b", "10")
        assert isinstance(value["ok"], bool)
    else:
        assert why is Finish.MAX_TOKENS


def test_an_answer_that_goes_on_goes_on_in_its_form() -> None:
    """A client that comes back with what it holds of the answer."""
    whole, why, _ = finish(asked(), table(1), lambda _: NO_DRAFT)
    for held in (1, len(whole) // 2, len(whole) - 1):
        assert finish(asked(held=tuple(whole[:held])), table(1), lambda _: NO_DRAFT)[:2] == (whole, why)


def test_an_answer_that_lost_its_form_is_refused() -> None:
    plan = asked(held=(ord("x"),)).plan_step()
    assert plan is not None
    with pytest.raises(ConfigError, match="Token 1 of the answer does not have the form"):
        plan.allowed()


def test_what_the_form_forces_is_drafted() -> None:
    whole, why, _ = finish(asked(), table(1), lambda _: NO_DRAFT)
    plan = asked().plan_step()
    assert plan is not None
    forced = plan.with_forced()
    assert text_of(forced.tree.tokens) == '{"kind": "'
    assert forced.own_nodes == len(forced.tree)
    *same, count = finish(asked(), table(1))
    assert same == [whole, why]
    assert count < len(whole) / 2


LENGTH = 24


def session_of(settings: AnswerSettings) -> Session:
    session = new_session()
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT, settings))
    return session


def answer(model: MarkovModel, settings: AnswerSettings, chance: random.Random) -> tuple[list[int], list[TokenChances]]:
    """A whole answer with random drafts, and what the verdicts tell."""

    def draft() -> DraftTree:
        count = chance.randrange(6)
        parents = tuple(chance.randrange(-1, node) for node in range(count))
        return DraftTree(tuple(chance.randrange(VOCAB) for _ in range(count)), parents)

    session = session_of(settings)
    told: list[TokenChances] = []
    for plan, verification in steps(session, model.verify, draft):
        verdict = session.verdict(plan, verification, stale=0, step_ms=0.0)
        assert len(verdict.chances) == len(verdict.tokens)
        told += verdict.chances
    assert len(told) == LENGTH
    return session.tokens[len(PROMPT) :], told


@given(st.integers(0, 1 << 30), st.booleans(), st.sampled_from([0.0, 0.8]))
def test_chances_do_not_depend_on_drafts(seed: int, processed: bool, temperature: float) -> None:
    sampling = Sampling(temperature, seed=seed, top_k=3, frequency_penalty=0.5)
    settings = AnswerSettings(sampling, max_tokens=LENGTH, chances=WantedChances(2, processed=processed))
    model = MarkovModel.random(seed)
    first, second = (answer(model, settings, random.Random(number)) for number in (seed, seed + 1))
    assert first == second


@pytest.mark.parametrize(("processed", "top_k"), [(False, 4), (True, 4), (True, 2)])
def test_chances_are_of_the_distribution_that_was_asked_for(processed: bool, top_k: int) -> None:
    model, sampling = MarkovModel.random(3), Sampling(0.7, seed=2, top_k=top_k)
    settings = AnswerSettings(sampling, max_tokens=LENGTH, chances=WantedChances(3, processed=processed))
    tokens, told = answer(model, settings, random.Random(1))
    for before, token, chances in zip([PROMPT[-1], *tokens], tokens, told, strict=False):
        row = model.table[[before]]
        [expected] = process_logits(row, sampling) if processed else log_softmax(row)
        assert chances.chosen == expected[token]
        assert chances.tokens == tuple(np.argsort(-expected, kind="stable")[: min(3, top_k)])
        assert chances.chances == tuple(expected[list(chances.tokens)])


def test_a_client_that_comes_back_learns_the_chances_of_what_it_missed() -> None:
    settings = AnswerSettings(Sampling(), max_tokens=LENGTH, chances=WantedChances(1))
    session, model = session_of(settings), MarkovModel.random(5)
    done = islice(steps(session, model.verify, acknowledges=False), 6)
    told = [each for _, verification in done for each in verification.chances]
    session.on_ack(len(PROMPT) + 2)
    held = len(PROMPT) + 3
    session.on_open(session.tokens[:held], asks=True)
    backlog = session.on_ask(Ask(1, held, session.hashes.at(held), (), settings, answer_start=len(PROMPT)))
    assert len(backlog.tokens) == 3
    assert backlog.chances == tuple(told[3:])


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 9))
def test_a_given_text_gets_the_chances_of_its_own_tokens_whatever_the_steps(seed: int, length: int, most: int) -> None:
    """Even of tokens that would end an answer, and as many rows at a time as a draft may have."""
    chance, model = random.Random(seed), MarkovModel.random(seed)
    given = [chance.randrange(VOCAB) for _ in range(length)]
    settings = AnswerSettings(max_tokens=length, ignore_end_of_text=True, chances=WantedChances(1))
    session = new_session(SessionLimits(1000, VOCAB, draft_nodes=5), frozenset({given[0]}))
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT[:1], settings), given=given)
    assert session.reads
    told: list[TokenChances] = []
    for plan, verification in steps(session, model.verify, most_read=most):
        assert len(plan.feed) + len(plan.tree) <= min(most, 6)
        assert verification.accepted == 0
        told += verification.chances
    assert session.phase is SessionPhase.IDLE
    assert session.tokens == [PROMPT[0], *given]
    rows = log_softmax(model.table[[PROMPT[0], *given[:-1]]])
    assert [each.chosen for each in told] == [row[token] for row, token in zip(rows, given, strict=True)]


def test_a_given_text_waits_for_a_client_that_does_not_read() -> None:
    settings = AnswerSettings(max_tokens=40, chances=WantedChances())
    session = new_session(SessionLimits(1000, VOCAB, draft_nodes=5, run_ahead_tokens=10))
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT, settings), given=[1] * 40)
    assert list(steps(session, MarkovModel.random(1).verify, acknowledges=False))
    assert len(session.tokens) == len(PROMPT) + 12
    session.on_ack(len(session.tokens))
    assert session.plan_step() is not None


SAMPLES = 20_000
TARGET = MarkovModel.random(1)
DRAFTER = TARGET.blurred(2, 1.0)
PROBABILITIES = np.exp(process_logits(TARGET.table, Sampling()))

PENALISED = Sampling(0.9, seed=13, min_p=0.02, repeat_penalty=1.5, repeat_last_n=1, logit_bias=((2, 0.7), (4, -0.4)))


def chi_square_p(tokens: list[int], sampling: Sampling) -> float:
    """One test over all transitions: the statistics of the rows add up, and so do their degrees of freedom."""
    counts = np.zeros((VOCAB, VOCAB))  # of which token followed which
    np.add.at(counts, (np.array(tokens[:-1]), np.array(tokens[1:])), 1)
    before = TextBefore([], [[token] for token in range(VOCAB)])  # all that a penalty may look back here
    table = adjusted(TARGET.table, [1] * VOCAB, sampling, before)
    expected = np.exp(process_logits(table, sampling).astype(np.float64))
    expected = expected / expected.sum(axis=1, keepdims=True) * counts.sum(axis=1, keepdims=True)
    likely = expected > 0
    assert not counts[~likely].any()
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = int((likely.sum(axis=1) - 1).sum())
    return float(stats.chi2.sf(statistic, freedom))


def lenient(plan: StepPlan) -> Verification:
    """The planted error: a first draft is accepted where the target gives it more than a third, whatever was drawn."""
    chosen = TARGET.choose(plan)
    if plan.tree and PROBABILITIES[plan.feed[-1], plan.tree.tokens[0]] > 1 / 3:
        chosen[0] = plan.tree.tokens[0]
    return plan.verify(chosen)


@pytest.mark.parametrize(
    ("sampling", "breadth", "depth", "is_lenient"),
    [
        pytest.param(Sampling(1.0, seed=11), 1, 4, False, marks=pytest.mark.long, id="1.0, chain"),
        pytest.param(Sampling(0.7, top_k=4, seed=12), 2, 3, False, id="0.7, tree"),
        pytest.param(PENALISED, 2, 3, False, marks=pytest.mark.long, id="penalties, tree"),
        pytest.param(Sampling(1.0, seed=11), 1, 3, True, id="a wrong rule"),
    ],
)
def test_committed_tokens_follow_the_targets_distribution(
    sampling: Sampling, breadth: int, depth: int, is_lenient: bool
) -> None:
    session = new_session()
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT, AnswerSettings(sampling, max_tokens=SAMPLES)))
    within = sampling.within(len(PROMPT))
    verify = lenient if is_lenient else TARGET.verify
    forwards = sum(1 for _ in steps(session, verify, lambda: DRAFTER.tree(session.tokens, within, breadth, depth)))
    assert forwards < 0.8 * SAMPLES  # drafts were accepted, so that the rule was at work
    chance = chi_square_p(session.tokens[len(PROMPT) :], sampling)
    assert chance < 1e-6 if is_lenient else chance > 0.001
