"""Examples of Llama 3.1 and 3.3."""

from __future__ import annotations

import pytest
from moa_client.tools.formats.llama import Llama
from moa_client.tools.reading.pieces import TextPiece

from tests.support.tool_calls import call, events_of, read

CALL = '{"name": "get_weather", "parameters": {"city": "San Francisco"}}'
EVENTS = events_of([call("get_weather", city="San Francisco")])


@pytest.mark.parametrize("text", [CALL, f"\n\n{CALL}\n", f"<|python_tag|>{CALL}"])
def test_a_call_is_the_whole_answer(text: str) -> None:
    assert read(Llama(), text) == EVENTS


@pytest.mark.parametrize("between", ["; ", ";", "\n"])
def test_several_calls(between: str) -> None:
    two = [call("get_weather", city="San Francisco"), call("get_weather", 1, city="San Francisco")]
    assert read(Llama(), f"{CALL}{between}{CALL}") == events_of(two)


@pytest.mark.parametrize(
    "text",
    [
        f"For example: {CALL}",
        '{"name": "Bob", "parameters": {"age": 3}}',
        '{"name": "get_weather", "age": 3}',
        '{"name": "get_weather", "parameters": [1]}',
        '{"answer": 42}',
        "{}",
        "{not json",
        "<|python_tag|>print(1)",
    ],
)
def test_other_objects_and_code_are_text(text: str) -> None:
    assert read(Llama(), text) == [TextPiece(text)]
