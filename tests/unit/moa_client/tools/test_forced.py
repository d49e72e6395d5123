"""What is written under the grammars is read back as calls of the schema, whatever is chosen."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer, TokenizerWrapper
from moa_client.tools.answer_reader import FORMATS, CallPiece
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.gemma4 import Gemma4
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.formats.json_calls import Gemma3, Hermes, Mistral11
from moa_client.tools.formats.qwen_xml import QwenXml
from moa_client.tools.grammars import Grammar, Reasoning, forced_grammar
from moa_client.tools.thinking import THINKINGS, TextPiece
from moa_client.tools.tool import Tool
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind
from moa_shared.tree import DraftTree

from tests.support.byte_vocabulary import END, TOKENS, begin
from tests.support.tool_calls import NOTE, NOW, TOOLS, WEATHER, call, read

NO_TREE = DraftTree((), ())
TAGS = Reasoning(THINKINGS[-1], is_open=True)
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "null": type(None),
}


def walk(grammar: str, random: Random, end: bytes = b'"') -> str:
    """A text under a grammar, each byte of it chosen at random.

    Args:
        end: of texts, which a walk would hardly ever find.
    """
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


def check(value: Any, schema: dict[str, Any]) -> None:
    """Asserts that a value is of a schema, as far as the tools here use them."""
    if "anyOf" in schema:
        assert any(isinstance(value, TYPES[each["type"]]) for each in schema["anyOf"])
        return
    if "enum" in schema:
        assert value in schema["enum"]
    if schema["type"] != "object":
        assert isinstance(value, TYPES[schema["type"]])
        return
    assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"])
    for key, each in value.items():
        check(each, schema["properties"][key])


def check_calls(form: ToolFormat, text: str) -> list[str]:
    """Asserts that a text is nothing but calls of the tools; their names."""
    names: list[str] = []
    schemas = {tool.name: dict(tool.parameters) for tool in TOOLS}
    for piece in read(form, text):
        assert isinstance(piece, CallPiece)
        check(json.loads(piece.arguments), schemas[piece.name])
        names.append(piece.name)
    return names


# Harmony's mark of an end is an end of text; of Gemma 3 the form without a fence is required, of the others JSON.
OTHERWISE = (Harmony, Gemma3, Gemma4, QwenXml)
each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)


@each_format
@given(seed=st.integers(0, 1 << 32))
def test_an_answer_is_one_call_of_a_tool(form: ToolFormat, seed: int) -> None:
    text = walk(forced_grammar(form, TOOLS, {}), Random(seed))
    assert len(check_calls(form, text)) == 1


@each_format
@given(seed=st.integers(0, 1 << 32))
def test_an_answer_is_several_calls_where_the_form_knows_several(form: ToolFormat, seed: int) -> None:
    text = walk(forced_grammar(form, [WEATHER, NOW], {}, is_parallel=True), Random(seed))
    names = check_calls(form, text)
    assert len(names) == 1 or (names and form.is_parallel)


@each_format
def test_a_tool_that_is_named_is_called(form: ToolFormat) -> None:
    assert check_calls(form, walk(forced_grammar(form, [NOTE], {}), Random(1))) == ["take-note"]
    assert check_calls(form, walk(forced_grammar(form, [NOW], {}), Random(1))) == ["now"]


@pytest.mark.parametrize("form", [form for form in FORMATS if type(form) not in OTHERWISE])
def test_what_the_form_writes_is_allowed(form: ToolFormat) -> None:
    place = {"x": 1.5, "exact": True}
    note = call("take-note", text='a "b"\n', tags=["x", "y"], place=place, level="high", until=None)
    text = form.render("", [note, call("now")] if form.is_parallel else [note])
    constraint = Constraint(ConstraintKind.LARK, forced_grammar(form, TOOLS, {}, is_parallel=True))
    answer = begin(constraint)
    answer.advance([*text.encode()])
    assert answer.allowed(NO_TREE)[0][END]


@each_format
@given(seed=st.integers(0, 1 << 32))
def test_an_answer_without_a_call_is_json_of_a_schema(form: ToolFormat, seed: int) -> None:
    schema = {"type": "object", "properties": {"o": {"enum": ["p"]}}, "required": ["o"], "additionalProperties": False}
    text = walk(forced_grammar(form, TOOLS, {}, otherwise=schema), Random(seed))
    if text == '{"o": "p"}':
        assert read(form, text) == [TextPiece(text)]
    else:
        assert len(check_calls(form, text)) == 1


def test_reasoning_that_the_prompt_has_opened_comes_first() -> None:
    text = walk(forced_grammar(Hermes(), [NOW], {}, reasoning=TAGS), Random(3), b"</think>")
    reasoning, answer = text.split("</think>")
    assert reasoning is not None
    assert check_calls(Hermes(), answer) == ["now"]


@pytest.mark.parametrize(
    ("form", "marks"),
    [(Mistral11(), ["[TOOL_CALLS]", "[ARGS]"]), (Harmony(), ["<|channel|>", "<|constrain|>", "<|message|>"])],
)
def test_marks_that_are_special_tokens_are_these_tokens(form: ToolFormat, marks: list[str]) -> None:
    class Vocabulary:
        eos_token_id = 256 + len(marks)
        bos_token_id = None
        tokens = (*(bytes([byte]) for byte in range(256)), *(mark.encode() for mark in marks), b"<end>")
        special_token_ids = (*range(256, 257 + len(marks)),)

        def __call__(self, text: bytes) -> list[int]:
            return list(text)

    special = {mark: 256 + number for number, mark in enumerate(marks)}
    vocabulary = LLTokenizer(TokenizerWrapper(Vocabulary()), eos_token=Vocabulary.eos_token_id)
    constraint = Constraint(ConstraintKind.LARK, forced_grammar(form, [NOW], special))
    answer = begin(constraint, vocabulary)
    text = ""
    while (token := int(np.flatnonzero(answer.allowed(NO_TREE)[0])[0])) != Vocabulary.eos_token_id:
        answer.advance([token])
        text += Vocabulary.tokens[token].decode()
        assert not any(mark[:1] == text[-1:] and token < 256 for mark in marks if mark[0] != "{")
    assert check_calls(form, text) == ["now"]


def test_a_number_that_cannot_be_enforced_is_refused_by_tool_and_field() -> None:
    tool = Tool("seek", parameters={"properties": {"a": {"type": "integer", "const": 2**53 + 1}}})
    with pytest.raises(ConfigError, match="The schema of seek has const: 9007199254740993"):
        forced_grammar(Hermes(), [tool], {})


def test_special_tokens_are_tokens_and_all_else_is_text() -> None:
    grammar = Grammar({"<|call|>": 7, "<|call": 8})
    assert grammar.markup('a"<|call|>\n<|call') == '"a\\"" <[7]> "\\n" <[8]>'
    assert (grammar.markup(""), Grammar({}).markup("<|call|>")) == ("", '"<|call|>"')
    assert (grammar.text_until("<|call|>"), grammar.text_until("\n")) == ("r0 <[7]>", "r1")
    assert grammar.lark("r0 r1") == 'start: r0 r1\nr0: /(?s:.*)/\nr1[suffix="\\n"]: /(?s:.*)/'
    assert (grammar.choice(['"a"']), grammar.choice(['"a"', '"b"'])) == ('"a"', "r2")
