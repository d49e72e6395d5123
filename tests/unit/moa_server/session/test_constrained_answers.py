"""An answer that must have a form: the same text whatever is drafted, and of the form."""

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import NO_DRAFT, StepPlan, Verification
from moa_shared.errors import ConfigError
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling
from moa_shared.tree import DraftTree

from tests.support.toy_forms import END, TOKENS, begin, text_of
from tests.unit.moa_server.session.markov import steps

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "b", "10"]}, "ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["ab", "a"]}, "maxItems": 3}},
    "required": ["kind", "ok", "tags"],
}  # fmt: skip
CONSTRAINT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
PROMPT = tuple(b"Hi")
SETTINGS = AnswerSettings(Sampling(1.0, seed=5, constraint=CONSTRAINT), max_tokens=60)


def asked(settings: AnswerSettings = SETTINGS, held: tuple[int, ...] = ()) -> Session:
    """A session that is asked for an answer, of which the client holds some tokens already."""
    limits = SessionLimits(4000, len(TOKENS), prefill_chunk=4)
    session = Session(limits, end_of_text=frozenset({END}), decode=text_of, run_ahead=True)
    ask = Ask(1, 0, session.hashes.at(0), (*PROMPT, *held), settings, answer_start=len(PROMPT))
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

    drafted = (lambda: draft(session.tokens[len(PROMPT) :])) if draft is not None else None
    done = [verification for _, verification in steps(session, verify, drafted)]
    return session.tokens[len(PROMPT) :], done[-1].finish, len(done)


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
