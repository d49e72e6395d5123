from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_client.tools.tool import (
    MOST_DESCRIPTION,
    ChoiceMode,
    Tool,
    ToolCall,
    ToolOffer,
    call_id,
    check_tools,
    mistral_id,
    offer_of,
)
from moa_shared.errors import ConfigError

from tests.support.messages import raises
from tests.support.tool_calls import NOW, TOOLS, WEATHER


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "get weather"},
            snapshot(
                "The tool's name 'get weather' cannot be used. Use 1 to 128 of the characters a-z, A-Z, 0-9, _ and -."
            ),
        ),
        (
            {"name": "n" * 129},
            snapshot(
                "The tool's name 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn' cannot be used. Use 1 to 128 of the characters a-z, A-Z, 0-9, _ and -."
            ),
        ),
        (
            {"name": "f", "description": "x" * (MOST_DESCRIPTION + 1)},
            snapshot("The description of the tool f has 32,769 characters, at most 32,768 are allowed. Shorten it."),
        ),
        (
            {"name": "f", "parameters": {"type": "string"}},
            snapshot(
                "The parameters of the tool f are of type 'string', expected 'object'. Arguments have names: describe them as properties of an object."
            ),
        ),
        (
            {"name": "f", "parameters": {"description": "x" * 70_000}},
            snapshot("The parameters of the tool f have 70,019 bytes, at most 65,536 are allowed. Shorten them."),
        ),
    ],
)
def test_a_tool_that_cannot_be_used(fields: dict[str, Any], message: str) -> None:
    with raises(ConfigError, message):
        Tool(**fields)


@pytest.mark.parametrize("name", ["a", "get_weather", "A-1", "x" * 128])
def test_names(name: str) -> None:
    assert Tool(name).name == name


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (
            [Tool(f"f{number}") for number in range(129)],
            snapshot("129 tools are offered, at most 128 are allowed. Offer fewer tools at a time."),
        ),
        ([NOW, NOW], snapshot("Two tools have the name now. Rename one of them.")),
        (
            [Tool(f"f{number}", parameters={"description": "x" * 60_000}) for number in range(4)],
            snapshot(
                "The parameters of all tools have 240,076 bytes, at most 196,608 are allowed. Offer fewer tools at a time."
            ),
        ),
    ],
)
def test_tools_that_cannot_be_offered_together(tools: list[Tool], message: str) -> None:
    with raises(ConfigError, message):
        check_tools(tools)


def test_tools_that_can() -> None:
    check_tools(TOOLS)
    check_tools([])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            ("id", "a b", "{}"),
            snapshot(
                "The call 'id' names no tool: 'a b'. Send calls back as the model made them, and none that was cut."
            ),
        ),
        (
            ("id", "f", "[1]"),
            snapshot(
                "The arguments of the call 'id' are not a JSON object. Send calls back as the model made them, and none that was cut."
            ),
        ),
        (
            ("id", "f", "{"),
            snapshot(
                "The arguments of the call 'id' are not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). Send calls back as the model made them, and none that was cut."
            ),
        ),
    ],
)
def test_a_call_that_cannot_be(fields: tuple[str, str, str], message: str) -> None:
    with raises(ConfigError, message):
        ToolCall(*fields)


def test_a_choice_says_which_tools_may_be_called() -> None:
    assert offer_of(TOOLS) == ToolOffer(TOOLS)
    assert offer_of(TOOLS, ChoiceMode.NONE).tools == ()
    assert offer_of(TOOLS, ChoiceMode.REQUIRED, is_parallel=False) == ToolOffer(TOOLS, True, False)
    assert offer_of(TOOLS, ChoiceMode.NAMED, "get_weather") == ToolOffer((WEATHER,), True, False)


def test_a_choice_of_what_is_not_offered() -> None:
    with raises(
        ConfigError,
        snapshot("A call of 'other' is required, which is not among the tools. Offered: get_weather, take-note, now."),
    ):
        offer_of(TOOLS, ChoiceMode.NAMED, "other")
    with raises(ConfigError, snapshot("A call is required, but no tool is offered. Offer one, or require none.")):
        offer_of([], ChoiceMode.REQUIRED)


@given(st.text(), st.integers(0, 200))
def test_ids_have_the_forms_of_openai_and_mistral(answer: str, index: int) -> None:
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", call_id(answer, index))
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", mistral_id(call_id(answer, index)))


def test_the_same_call_has_the_same_id_and_others_have_others() -> None:
    assert call_id("chatcmpl-1", 0) == "call_Fos7dp74GPYN27s0GFrbLPQd"
    assert len({call_id(answer, index) for answer in ("a", "b", "a/1") for index in range(20)}) == 60
    assert (mistral_id("VvvODy9mT"), mistral_id("VvvODy9m-") != "VvvODy9m-") == ("VvvODy9mT", True)
