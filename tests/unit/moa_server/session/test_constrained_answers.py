"""An answer that must have a form: the same text whatever is drafted, and of the form."""

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import NO_DRAFT, StepPlan
from moa_shared.errors import ConfigError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ask
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling
from moa_shared.tree import DraftTree

from tests.support.toy_forms import END, TOKENS, begin, text_of

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "b", "10"]}, "ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["ab", "a"]}, "maxItems": 3}},
    "required": ["kind", "ok", "tags"],
}  # fmt: skip
CONSTRAINT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
PROMPT = tuple(b"Hi")


def choose(plan: StepPlan, table: np.ndarray) -> list[int]:
    last = [plan.feed[-1], *plan.tree.tokens]
    return select(table[last], plan.positions, plan.sampling, plan.text_before, plan.allowed())


def answer(
    settings: AnswerSettings,
    table: np.ndarray,
    draft: Callable[[list[int]], DraftTree],
) -> tuple[list[int], Finish]:
    limits = SessionLimits(4000, len(TOKENS), prefill_chunk=4)
    session = Session(limits, end_of_text=frozenset({END}), decode=text_of, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT, settings), begin(CONSTRAINT))
    while True:
        plan = session.plan_step()
        assert plan is not None
        if plan.chooses:
            plan = plan.pick(draft(session.tokens[len(PROMPT) :]))
            assert plan is not None
        if not plan.chooses:
            session.on_prefilled(plan)
            continue
        verification = plan.verify(choose(plan, table))
        session.on_verified(plan, verification)
        session.on_ack(len(session.tokens))
        if verification.finish is not Finish.UNFINISHED:
            return session.tokens[len(PROMPT) :], verification.finish


@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 1.0]))
def test_the_text_is_of_the_form_and_the_same_with_any_drafts(seed: int, temperature: float) -> None:
    chance = random.Random(seed)
    table = np.random.default_rng(seed).standard_normal((len(TOKENS), len(TOKENS)), np.float32)
    table[:, ord("]")] += 2  # so that lists end
    settings = AnswerSettings(
        Sampling(temperature, seed=seed, presence_penalty=0.5, constraint=CONSTRAINT), max_tokens=60
    )
    plain, finish = answer(settings, table, lambda _: NO_DRAFT)

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

    assert answer(settings, table, drafted) == (plain, finish)
    if finish is Finish.END_OF_TEXT:
        value = json.loads(text_of(plain))
        assert value["kind"] in ("ab", "b", "10")
        assert isinstance(value["ok"], bool)
    else:
        assert finish is Finish.MAX_TOKENS


def test_an_answer_that_goes_on_goes_on_in_its_form() -> None:
    """A client that comes back with what it holds of the answer."""
    table = np.random.default_rng(1).standard_normal((len(TOKENS), len(TOKENS)), np.float32)
    table[:, ord("]")] += 2
    settings = AnswerSettings(Sampling(1.0, seed=5, constraint=CONSTRAINT), max_tokens=60)
    whole, finish = answer(settings, table, lambda _: NO_DRAFT)
    for held in (1, len(whole) // 2, len(whole) - 1):
        session = Session(
            SessionLimits(4000, len(TOKENS)), end_of_text=frozenset({END}), decode=text_of, run_ahead=True
        )
        tokens = (*PROMPT, *whole[:held])
        session.on_ask(Ask(1, 0, session.hashes.at(0), tokens, settings, answer_start=len(PROMPT)), begin(CONSTRAINT))
        while session.tokens[len(PROMPT) :] != whole:
            plan = session.plan_step()
            assert plan is not None
            verification = plan.verify(choose(plan, table))
            session.on_verified(plan, verification)
            session.on_ack(len(session.tokens))
        assert verification.finish is finish


def test_an_answer_that_lost_its_form_is_refused() -> None:
    session = Session(SessionLimits(4000, len(TOKENS)), end_of_text=frozenset({END}), decode=text_of, run_ahead=True)
    settings = AnswerSettings(Sampling(constraint=CONSTRAINT))
    session.on_ask(
        Ask(1, 0, session.hashes.at(0), (*PROMPT, ord("x")), settings, answer_start=len(PROMPT)), begin(CONSTRAINT)
    )
    plan = session.plan_step()
    assert plan is not None
    with pytest.raises(ConfigError, match="Token 1 of the answer does not have the form"):
        plan.allowed()


def test_what_the_form_forces_is_drafted() -> None:
    table = np.random.default_rng(1).standard_normal((len(TOKENS), len(TOKENS)), np.float32)
    settings = AnswerSettings(Sampling(1.0, seed=5, constraint=CONSTRAINT), max_tokens=60)
    whole, finish = answer(settings, table, lambda _: NO_DRAFT)
    session = Session(SessionLimits(4000, len(TOKENS)), end_of_text=frozenset({END}), decode=text_of, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), PROMPT, settings), begin(CONSTRAINT))
    steps = 0
    while session.tokens[len(PROMPT) :] != whole:
        plan = session.plan_step()
        assert plan is not None
        plan = plan.with_forced()
        if not steps:
            assert text_of(plan.tree.tokens) == '{"kind": "'
            assert plan.own_nodes == len(plan.tree)
        verification = plan.verify(choose(plan, table))
        session.on_verified(plan, verification)
        session.on_ack(len(session.tokens))
        steps += 1
    assert verification.finish is finish
    assert steps < len(whole) / 2
