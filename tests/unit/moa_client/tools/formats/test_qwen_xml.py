"""Examples of Qwen3-Coder."""

from __future__ import annotations

import json
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.formats.qwen_xml import QwenXml
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, TextPiece
from moa_client.tools.reading.reader import Reader
from moa_client.tools.tool import Tool
from moa_shared.errors import ConfigError

from tests.support.messages import raises
from tests.support.tool_calls import TOOLS, WEATHER, call, events_of, read

WEATHER_CALL = """<tool_call>
<function=get_weather>
<parameter=city>
San Francisco
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""


def value_of(schema: Any, written: str) -> Any:
    """What an argument of a schema is read as."""
    tool = Tool("f", parameters={"type": "object", "properties": {"x": schema}})
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    pieces = read(QwenXml(), text, tools=[tool])
    return json.loads("".join(piece.text for piece in pieces if isinstance(piece, CallArguments)))["x"]


def test_a_call() -> None:
    expected = events_of([call("get_weather", city="San Francisco", days=3)])
    assert read(QwenXml(), WEATHER_CALL) == expected
    assert read(QwenXml(), WEATHER_CALL.removeprefix("<tool_call>\n")) == expected


def test_a_text_comes_as_it_is_written() -> None:
    reader = Reader(QwenXml(), TOOLS)
    reader.push("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert reader.push("San") == [CallArguments(0, "San")]
    assert reader.push("\n<") == []
    assert reader.push('"') == [CallArguments(0, '\\n<\\"')]


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "a\n\nb", "a\n\nb"),
        ({"type": "string"}, "", ""),
        ({"type": "integer"}, "5", 5),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "five", "five"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, '{"a": {}}', {"a": {}}),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": None}, "None", None),
        ({}, "5", 5),
        ({}, "five", "five"),
    ],
)
def test_values_are_read_by_the_schema(schema: Any, written: str, value: Any) -> None:
    assert value_of(schema, written) == value


def test_a_tool_without_parameters() -> None:
    text = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    assert read(QwenXml(), text) == [CallStarted(0, "now"), CallArguments(0, "{}"), CallEnded(0)]


def test_an_unknown_function_without_its_outer_tag_is_text() -> None:
    text = "Write <function=name> and so on."
    assert read(QwenXml(), text) == [TextPiece(text)]


def test_what_cannot_be_enforced_is_refused() -> None:
    def grammar_of(schema: dict[str, Any]) -> str:
        parameters = {"type": "object", "properties": {"x": schema}}
        return QwenXml().call_grammar(Tool("f", parameters=parameters), Grammar({}))

    with raises(
        ConfigError,
        snapshot(
            "The schema of f.x uses pattern, which cannot be enforced in this model's form of calls. Change it, or do not require a call."
        ),
    ):
        grammar_of({"type": "string", "pattern": "a+"})
    with raises(
        ConfigError,
        snapshot(
            "The schema of f.x allows a text or something else, which cannot be enforced in this model's form of calls. Change it, or do not require a call."
        ),
    ):
        grammar_of({"type": ["string", "integer"]})
    assert QwenXml().call_grammar(WEATHER, Grammar({}))
