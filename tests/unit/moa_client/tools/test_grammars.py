"""What an answer is held to: calls of the schema, whatever is chosen; reasoning with a budget; forms after reasoning."""

import json
import re
from random import Random

import jsonschema  # type: ignore[import-untyped]  # a part of the extra mcp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer, TokenizerWrapper
from moa_client.tools.answer_reader import FORMATS, CallPiece, TextPiece
from moa_client.tools.formats import Harmony, Hermes, Mistral11, ToolFormat, forced_grammar
from moa_client.tools.grammars import Reasoning, limited_grammar, reasoned_grammar
from moa_client.tools.thinking import THINKINGS, Thinking
from moa_shared.constraints.constrained_text import ByteTokens, ConstrainedText
from moa_shared.sampling.settings import Constraint, ConstraintKind, choice_of
from moa_shared.tree import DraftTree

from tests.support.tool_calls import NOTE, NOW, TOOLS, call, read
from tests.support.toy_forms import END, TOKENS, begin

NO_TREE = DraftTree((), ())


def walk(grammar: str, random: Random, end: bytes = b'"') -> str:
    """A text under a grammar, each byte of it chosen at random, but for the `end` of texts, which none would find."""
    answer = begin(Constraint(ConstraintKind.LARK, grammar))
    text = b""
    while True:
        allowed = np.flatnonzero(answer.allowed(NO_TREE)[0]).tolist()
        if END in allowed and (len(allowed) == 1 or random.random() < 0.7):
            return text.decode()
        token = random.choice([each for each in allowed if each != END])
        begun = max(length for length in range(len(end)) if text.endswith(end[:length]))
        if end[begun] in allowed and random.random() < (0.95 if begun else 0.2):
            token = end[begun]
        answer.advance([token])
        text += TOKENS[token]


def check_calls(form: ToolFormat, text: str) -> list[str]:
    """Asserts that a text is nothing but calls of the tools, with arguments of their schemas; their names."""
    names: list[str] = []
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for piece in read(form, text):
        assert isinstance(piece, CallPiece)
        jsonschema.validate(json.loads(piece.arguments), schemas[piece.name])
        names.append(piece.name)
    return names


each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)


@each_format
@given(seed=st.integers(0, 1 << 32), is_parallel=st.booleans())
def test_an_answer_is_calls_of_the_tools_that_are_offered(form: ToolFormat, seed: int, is_parallel: bool) -> None:
    text = walk(forced_grammar(form, TOOLS, {}, is_parallel=is_parallel), Random(seed))
    names = check_calls(form, text)
    assert len(names) == 1 or (names and is_parallel and form.is_parallel)
    assert check_calls(form, walk(forced_grammar(form, [NOTE], {}), Random(seed))) == ["take-note"]
    schema = {"type": "object", "properties": {"o": {"enum": ["p"]}}, "required": ["o"], "additionalProperties": False}
    text = walk(forced_grammar(form, TOOLS, {}, otherwise=schema), Random(seed))
    assert read(form, text) == [TextPiece(text)] if text == '{"o": "p"}' else len(check_calls(form, text)) == 1


@pytest.mark.parametrize(
    ("form", "marks"),
    [(Mistral11(), ["[TOOL_CALLS]", "[ARGS]"]), (Harmony(), ["<|channel|>", "<|constrain|>", "<|message|>"])],
)
def test_marks_that_are_special_tokens_are_these_tokens(form: ToolFormat, marks: list[str]) -> None:
    tokens, special = ByteTokens([mark.encode() for mark in marks]), {mark: 256 + at for at, mark in enumerate(marks)}
    vocabulary = LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.eos_token_id)
    called = begin(Constraint(ConstraintKind.LARK, forced_grammar(form, [NOW], special)), vocabulary)
    text = ""
    while (token := int(np.flatnonzero(called.allowed(NO_TREE)[0])[0])) != tokens.eos_token_id:
        called.advance([token])
        text += chr(token) if token < 256 else marks[token - 256]
        assert not any(mark[:1] == text[-1:] and token < 256 for mark in marks)
    assert check_calls(form, text) == ["now"]


HARMONY, _, _, TAGS = THINKINGS
_MARKS = ("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|channel>", "<channel|>")
_TOKENS = ByteTokens([mark.encode() for mark in _MARKS])
IDS = {mark: 256 + number for number, mark in enumerate(_MARKS)}
CLOSE, EOS = IDS["</think>"], _TOKENS.eos_token_id
VOCABULARY = LLTokenizer(TokenizerWrapper(_TOKENS), eos_token=EOS)
WORD = choice_of(["yes", "no"])


def reasoning(thinking: Thinking = TAGS, *, is_open: bool, budget: int | None = None) -> Reasoning:
    return Reasoning(thinking, is_open, budget, IDS.get, frozenset({EOS}))


def answer(grammar: str) -> ConstrainedText:
    return begin(Constraint(ConstraintKind.LARK, grammar), VOCABULARY)


def tokens_of(text: str) -> list[int]:
    parts = re.split("(" + "|".join(map(re.escape, _MARKS)) + ")", text)
    return [token for part in parts for token in ([IDS[part]] if part in IDS else part.encode())]


def takes(read: ConstrainedText, tokens: list[int]) -> bool:
    for token in tokens:
        if not read.allowed(NO_TREE)[0][token]:
            return False
        read.advance([token])
    return True


def may_be(grammar: str, text: str) -> bool:
    read = answer(grammar)
    return takes(read, tokens_of(text)) and bool(read.allowed(NO_TREE)[0][EOS])


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
    random, drafted, read = Random(seed), answer(grammar), list[int]()
    while len(read) < 12:
        size = random.randrange(6)
        tokens = tuple(random.choice([*IDS.values(), *b'an{"yo', EOS]) for _ in range(size))
        tree = DraftTree(tokens, tuple(random.randrange(-1, node) for node in range(size)))
        rows = drafted.allowed(tree)
        for row, path in zip(rows, ((), *tree.paths), strict=True):
            fresh = answer(grammar)
            fresh.advance(read)
            if EOS not in path and takes(fresh, [*path]):
                assert np.array_equal(row, fresh.allowed(NO_TREE)[0])
        allowed = [token for token in np.flatnonzero(rows[0]).tolist() if token != EOS]
        if not allowed:
            return
        read.append(random.choice([each for each in allowed if each >= 256] or allowed))
        drafted.advance(read[-1:])


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


THEN, FINAL, ANALYSIS = "<|end|><|start|>assistant", "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"
CALLED = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
EMPTY = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps({"type": "object", "properties": {}, "required": []}))
PLACE = Constraint(ConstraintKind.REGEX, r"[a-z]+/\d")


@pytest.mark.parametrize(("grammar", "texts", "others"), [
    (
        limited_grammar(reasoning(is_open=False, budget=2), IDS),
        ["An answer that tells of <think>, and of more.", "<think>ab</think>An answer", ""],
        ["<think>abc</think>An answer"],
    ),
    (
        limited_grammar(reasoning(HARMONY, is_open=False, budget=2), IDS),
        [f"{ANALYSIS}ab{THEN}{FINAL}An answer", f"{FINAL}An answer"],
        [f"{ANALYSIS}abc{THEN}{FINAL}An answer", f"{FINAL}An{THEN}{ANALYSIS}a{THEN}{FINAL}answer"],
    ),
    (
        reasoned_grammar(reasoning(HARMONY, is_open=False), WORD, IDS),
        [f"{ANALYSIS}I say no{THEN}{FINAL}no", f"{FINAL}yes"],
        ["yes"],
    ),
    (
        forced_grammar(Harmony(), [NOW], IDS, reasoning=reasoning(HARMONY, is_open=False, budget=2)),
        [CALLED, f"{ANALYSIS}Hm{THEN}{CALLED}"],
        [f"{ANALYSIS}Hmm{THEN}{CALLED}", f"{ANALYSIS}Hm{THEN}{FINAL}No"],
    ),
    (
        forced_grammar(Hermes(), [NOW], IDS, reasoning=reasoning(is_open=True)),
        [f"Hm</think>\n{Hermes().render('', [call('now')])}"],
        [Hermes().render("", [call("now")]), "Hm</think>\nNo"],
    ),
    *(
        (
            reasoned_grammar(reasoning(is_open=is_open, budget=budget), form, IDS),
            [f"maybe</think>\n\n{text}"] if is_open else [f"<think>maybe</think>{text}", text],
            [f"maybe</think>\n\n{wrong}", text] if is_open else [wrong],
        )
        for form, text, wrong in ((WORD, "no", "maybe"), (EMPTY, "{}", "[]"), (PLACE, "a/1", "a/b"))
        for is_open in (True, False)
        for budget in (None, 6)
    ),
])  # fmt: skip
def test_which_answers_are_of_a_form(grammar: str, texts: list[str], others: list[str]) -> None:
    assert [text for text in (*texts, *others) if may_be(grammar, text)] == texts
