"""What an answer tells of the chances of its tokens: the same whatever is drafted."""

import random
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.session.session import Session, SessionLimits, SessionPhase
from moa_shared.protocol.messages import AnswerSettings, Ask
from moa_shared.sampling.coupling import process_logits
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Sampling, TokenChances, WantedChances
from moa_shared.tree import DraftTree

from tests.unit.moa_server.session.markov import PROMPT, VOCAB, MarkovModel, new_session, steps

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
