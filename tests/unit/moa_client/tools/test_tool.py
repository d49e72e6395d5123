"""Tools, calls, and the schemas of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.answer_reader import DEFAULT
from moa_client.tools.grammars import forced_grammar
from moa_client.tools.tool import (
    ANY,
    MOST_DEPTH,
    Tool,
    ToolCall,
    call_id,
    check_schema,
    check_tools,
    mistral_id,
    offer_of,
    types_of,
)
from moa_shared.errors import ConfigError

from tests.support.tool_calls import NOW, TOOLS

MANY = [Tool(f"f{number}") for number in range(129)]
DEEP = json.loads("[" * MOST_DEPTH + "]" * MOST_DEPTH)
LARGE = [Tool(f"f{number}", parameters={"description": "x" * 60_000}) for number in range(4)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tool("get weather"), "The tool's name 'get weather' cannot be used."),
        (
            lambda: Tool("f", parameters={"type": "string"}),
            "The parameters of the tool f are of type 'string', expected 'object'.",
        ),
        (lambda: Tool("f", parameters={"default": DEEP}), "The schema of f is nested more than 64 deep."),
        (lambda: check_tools(MANY), "129 tools are offered, at most 128 are allowed."),
        (lambda: check_tools([NOW, NOW]), "Two tools have the name now."),
        (lambda: check_tools(LARGE), "The parameters of all tools have 240,076 bytes, at most 196,608 are allowed."),
        (lambda: ToolCall("id", "a b", "{}"), "The call 'id' names no tool: 'a b'."),
        (lambda: ToolCall("id", "f", "{"), "The arguments of the call 'id' are not JSON: Expecting"),
        (lambda: ToolCall("id", "f", "[1]"), "The arguments of the call 'id' are not a JSON object."),
        (
            lambda: check_schema("f", {"properties": {"x": {"items": [1]}}}),
            "The schema of f.x[] is not a JSON object.",
        ),
        (lambda: check_schema("f", {"type": [[]]}), "In the schema of f, type is not a name or a list of names."),
        (lambda: check_schema("f", {"enum": {}}), "In the schema of f, enum is not a list."),
        (lambda: offer_of(TOOLS, name="other"), "A call of 'other' is required, which is not among the tools."),
        (lambda: offer_of([], is_forced=True), "A call is required, but no tool is offered."),
    ],
)
def test_what_cannot_be_used(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert (caught.value.message[: len(words)], bool(caught.value.hint)) == (words, True)


@given(st.text(), st.integers(0, 200))
def test_ids_have_the_forms_of_openai_and_mistral(answer: str, index: int) -> None:
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", call_id(answer, index))
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", mistral_id(call_id(answer, index)))
    assert call_id("chatcmpl-1", 0) == "call_Fos7dp74GPYN27s0GFrbLPQd"  # the same call has the same id, others others
    assert len({call_id(answer, index) for answer in ("a", "b", "a/1") for index in range(20)}) == 60
    assert (mistral_id("VvvODy9mT"), mistral_id("VvvODy9m-") != "VvvODy9m-") == ("VvvODy9mT", True)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "file"},
        {"enum": []},
        {"oneOf": [{"type": "string"}, {"$ref": "#/none"}]},
        {"type": "object", "properties": {"y": True}, "required": ["z"]},
        {"type": "string", "enum": [1]},
    ],
)
def test_whatever_passes_is_enforced_or_refused(schema: Any) -> None:
    tool = Tool("f", parameters={"type": "object", "properties": {"x": schema}})
    try:
        outcome = forced_grammar(DEFAULT, [tool], {})
    except ConfigError as error:
        outcome = error.message
    assert outcome.startswith("start: ") or "cannot be enforced" in outcome


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"enum": ["a", 1, 1.5, None, True, [], {}]}, ANY),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"$ref": "#/$defs/a"}, {"integer"}),
        ({"$ref": "#/$defs/tree"}, {"null"}),
        *(({"$ref": to}, ANY) for to in ("#/$defs/loop", "#/$defs/none", "https://a.b/c", "#/$defs/b/type/x")),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    definitions = {
        "a": {"$ref": "#/$defs/b"},
        "b": {"type": "integer"},
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
    }
    assert types_of(schema, {"$defs": definitions}) == types
