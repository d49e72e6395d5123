"""Reasoning with a budget, and forms after reasoning: what may follow, with drafts and without."""

from __future__ import annotations

import json
import re
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer, TokenizerWrapper, regex_to_lark
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.grammars import Reasoning, _as_lark, forced_grammar, limited_grammar, reasoned_grammar
from moa_client.tools.thinking import THINKINGS, Thinking
from moa_shared.constraints.constrained_text import ByteTokens, ConstrainedText, try_constraint
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind, choice_of
from moa_shared.tree import DraftTree

from tests.support.byte_vocabulary import begin
from tests.support.tool_calls import NOW

HARMONY, GEMMA4, _, TAGS = THINKINGS
_MARKS = ("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|channel>", "<channel|>")
_TOKENS = ByteTokens([mark.encode() for mark in _MARKS])
IDS = {mark: 256 + number for number, mark in enumerate(_MARKS)}
OPEN, CLOSE, CHANNEL, END = IDS["<think>"], IDS["</think>"], IDS["<|channel|>"], _TOKENS.eos_token_id
VOCABULARY = LLTokenizer(TokenizerWrapper(_TOKENS), eos_token=END)
NO_TREE = DraftTree((), ())
WORD = choice_of(["yes", "no"])


def reasoning(thinking: Thinking = TAGS, *, is_open: bool, budget: int | None = None) -> Reasoning:
    return Reasoning(thinking, is_open, budget, IDS.get, frozenset({END}))


def answer(grammar: str) -> ConstrainedText:
    return begin(Constraint(ConstraintKind.LARK, grammar), VOCABULARY)


def tokens_of(text: str) -> list[int]:
    parts = re.split("(" + "|".join(map(re.escape, _MARKS)) + ")", text)
    return [token for part in parts for token in ([IDS[part]] if part in IDS else part.encode())]


def may_be(grammar: str, text: str) -> bool:
    """Whether a whole answer is of a form."""
    read = answer(grammar)
    for token in tokens_of(text):
        if not read.allowed(NO_TREE)[0][token]:
            return False
        read.advance([token])
    return bool(read.allowed(NO_TREE)[0][END])


GRAMMARS = [
    limited_grammar(reasoning(is_open=True, budget=3), IDS),
    limited_grammar(reasoning(is_open=False, budget=2), IDS),
    limited_grammar(reasoning(HARMONY, is_open=False, budget=4), IDS),
    reasoned_grammar(reasoning(is_open=True, budget=3), WORD, IDS),
    reasoned_grammar(reasoning(HARMONY, is_open=False, budget=2), WORD, IDS),
    reasoned_grammar(reasoning(is_open=False), Constraint(ConstraintKind.JSON_OBJECT), IDS),
]


@pytest.mark.parametrize("grammar", GRAMMARS)
@given(seed=st.integers(0, 1 << 32))
def test_what_may_follow_a_draft_is_what_may_follow_its_text(grammar: str, seed: int) -> None:
    """So the text is the same, whatever is drafted, and however much of it is taken back."""
    random = Random(seed)
    drafted, text = answer(grammar), answer(grammar)
    read: list[int] = []
    while len(read) < 12:
        tokens: list[int] = []
        parents: list[int] = []
        for node in range(random.randrange(6)):
            parents.append(random.randrange(-1, node) if node else -1)
            tokens.append(random.choice([*IDS.values(), *b'an{"yo', END]))
        rows = drafted.allowed(DraftTree(tuple(tokens), tuple(parents)))
        for node, token in enumerate(tokens):
            path = [token]
            parent = parents[node]
            while parent != -1:
                path.insert(0, tokens[parent])
                parent = parents[parent]
            fresh = answer(grammar)
            fresh.advance(read)
            if END in path or not _can_be_read(fresh, path):
                continue
            assert np.array_equal(rows[1 + node], fresh.allowed(NO_TREE)[0])
        assert np.array_equal(rows[0], text.allowed(NO_TREE)[0])
        allowed = [token for token in np.flatnonzero(rows[0]).tolist() if token != END]
        if not allowed:
            return
        token = random.choice([each for each in allowed if each >= 256] or allowed)
        drafted.advance([token])
        text.advance([token])
        read.append(token)


def _can_be_read(text: ConstrainedText, path: list[int]) -> bool:
    for token in path:
        if not text.allowed(NO_TREE)[0][token]:
            return False
        text.advance([token])
    return True


@given(budget=st.integers(0, 40), length=st.integers(0, 50))
def test_reasoning_ends_with_its_budget_and_not_before(budget: int, length: int) -> None:
    read = answer(limited_grammar(reasoning(is_open=True, budget=budget), IDS))
    for number in range(min(length, budget)):
        assert read.allowed(NO_TREE)[0].all(), number  # nothing of the text changes until then
        read.advance([ord("a")])
    if length >= budget:
        assert np.flatnonzero(read.allowed(NO_TREE)[0]).tolist() == [CLOSE]
    read.advance([CLOSE])
    assert read.allowed(NO_TREE)[0].all()


def test_a_model_that_opens_reasoning_itself_may_leave_it_out() -> None:
    limited = limited_grammar(reasoning(is_open=False, budget=2), IDS)
    assert may_be(limited, "An answer that tells of <think>, and of more.")
    assert may_be(limited, "<think>ab</think>An answer")
    assert may_be(limited, "")
    assert not may_be(limited, "<think>abc</think>An answer")
    limited = limited_grammar(reasoning(GEMMA4, is_open=False, budget=2), IDS)
    assert may_be(limited, "<|channel>thought\nab<channel|>An answer")
    assert not may_be(limited, "<|channel>thought\nab<channel|>An <|channel>thought\nab<channel|>answer")


def test_the_channels_of_harmony() -> None:
    final, then = "<|channel|>final<|message|>", "<|end|><|start|>assistant"
    limited = limited_grammar(reasoning(HARMONY, is_open=False, budget=2), IDS)
    assert may_be(limited, f"<|channel|>analysis<|message|>ab{then}{final}An answer")
    assert may_be(limited, f"{final}An answer")
    assert not may_be(limited, f"<|channel|>analysis<|message|>abc{then}{final}An answer")
    assert not may_be(limited, f"{final}An{then}<|channel|>analysis<|message|>a{then}{final}answer")
    formed = reasoned_grammar(reasoning(HARMONY, is_open=False), WORD, IDS)
    assert may_be(formed, f"<|channel|>analysis<|message|>I say no{then}{final}no")
    assert may_be(formed, f"{final}yes")
    assert not may_be(formed, "yes")


def test_a_required_call_comes_after_reasoning_too() -> None:
    then, called = "<|end|><|start|>assistant", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    forced = forced_grammar(Harmony(), [NOW], IDS, reasoning=reasoning(HARMONY, is_open=False, budget=2))
    assert may_be(forced, called)
    assert may_be(forced, f"<|channel|>analysis<|message|>Hm{then}{called}")
    assert not may_be(forced, f"<|channel|>analysis<|message|>Hmm{then}{called}")
    assert not may_be(forced, f"<|channel|>analysis<|message|>Hm{then}<|channel|>final<|message|>No")


@pytest.mark.parametrize("budget", [None, 6])
def test_a_form_is_of_the_answer_after_reasoning(budget: int | None) -> None:
    schema = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps({"type": "object", "properties": {}, "required": []}))
    place = Constraint(ConstraintKind.REGEX, r"[a-z]+/\d")
    for form, text, wrong in ((WORD, "no", "maybe"), (schema, "{}", "[]"), (place, "a/1", "a/b")):
        opened = reasoned_grammar(reasoning(is_open=True, budget=budget), form, IDS)
        assert may_be(opened, f"maybe</think>\n\n{text}")
        assert not may_be(opened, f"maybe</think>\n\n{wrong}")
        assert not may_be(opened, text)
        own = reasoned_grammar(reasoning(is_open=False, budget=budget), form, IDS)
        assert may_be(own, f"<think>maybe</think>{text}")
        assert may_be(own, text)
        assert not may_be(own, wrong)


def test_what_cannot_be_enforced_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="A Lark grammar cannot be enforced after"):
        reasoned_grammar(reasoning(is_open=True), Constraint(ConstraintKind.LARK, 'start: "a"'), IDS)
    with pytest.raises(ConfigError, match="has no token </think>"):
        limited_grammar(Reasoning(TAGS, is_open=True, budget=3), {})


def test_a_trial_knows_the_ids_of_large_vocabularies() -> None:
    marks = {mark: 260_000 + number for number, mark in enumerate(_MARKS)}
    limited = Reasoning(HARMONY, is_open=False, budget=30_000, token_id=marks.get)
    try_constraint(Constraint(ConstraintKind.LARK, limited_grammar(limited, marks)))


@pytest.mark.parametrize("expression", [r"\d+/\w", "a\nb", r"\\d", r"[\d.]\/", "é\t"])
def test_expressions_are_written_as_without_reasoning(expression: str) -> None:
    assert _as_lark(expression) == regex_to_lark(expression, "d")
