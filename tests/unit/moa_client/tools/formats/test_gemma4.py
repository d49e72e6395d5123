"""Examples of Gemma 4's template."""

from __future__ import annotations

import json

import pytest
from moa_client.tools.formats.gemma4 import Gemma4
from moa_client.tools.reading.json_scanner import MOST_DEPTH
from moa_client.tools.reading.pieces import CallArguments, CallBroken, CallEnded, CallStarted, TextPiece
from moa_client.tools.reading.reader import Reader

from tests.support.tool_calls import TOOLS, call, events_of, read


def test_a_call_with_values_of_all_types() -> None:
    text = (
        '<|tool_call>call:take-note{text:<|"|>a "b"\n\\c<|"|>,tags:[<|"|>x<|"|>,<|"|>y<|"|>],'
        "place:{x:1.5,exact:true},until:null}<tool_call|>"
    )
    assert read(Gemma4(), text) == events_of(
        [call("take-note", text='a "b"\n\\c', tags=["x", "y"], place={"x": 1.5, "exact": True}, until=None)]
    )


def test_space_and_quoted_keys_are_read_too() -> None:
    text = '<|tool_call>call:get_weather{ <|"|>city<|"|>: <|"|>Paris<|"|>, days: 3 }<tool_call|>'
    assert read(Gemma4(), text) == events_of([call("get_weather", city="Paris", days=3)])


def test_a_text_comes_as_it_is_written() -> None:
    reader = Reader(Gemma4(), TOOLS)
    assert reader.push('<|tool_call>call:get_weather{city:<|"|>Pa') == [
        CallStarted(0, "get_weather"),
        CallArguments(0, '{"city": "Pa'),
    ]
    assert reader.push("ris<|") == [CallArguments(0, "ris")]
    assert reader.push('"|>}') == [CallArguments(0, '"}'), CallEnded(0)]


@pytest.mark.parametrize("arguments", ["{city:Paris}", "{:1}", "{days:1,}", "{days}", "{days:[1,]}", "{city:[}"])
def test_other_notations_break_the_call(arguments: str) -> None:
    text = f"<|tool_call>call:get_weather{arguments}<tool_call|>"
    assert read(Gemma4(), text)[-1] == CallBroken(0, text)


def test_too_many_brackets_break_the_call() -> None:
    text = f"<|tool_call>call:f{{x:{'[' * (MOST_DEPTH + 1)}"
    assert read(Gemma4(), text)[-1] == CallBroken(0, text)
    text = f"<|tool_call>call:f{{x:{'[' * (MOST_DEPTH - 2)}{']' * (MOST_DEPTH - 2)}}}<tool_call|>"
    started, arguments, ended = read(Gemma4(), text)
    assert (started, ended) == (CallStarted(0, "f"), CallEnded(0))
    assert isinstance(arguments, CallArguments)
    assert json.loads(arguments.text)


def test_what_is_no_call_is_text() -> None:
    assert read(Gemma4(), "<|tool_call>f{}") == [TextPiece("<|tool_call>f{}")]
