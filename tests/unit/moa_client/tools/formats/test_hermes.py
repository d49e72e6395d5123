"""Examples of Hermes 2 Pro, Qwen2.5 and Qwen3."""

from __future__ import annotations

import jinja2
from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.reading.pieces import CallArguments, CallBroken, CallEnded, CallStarted, TextPiece
from moa_client.tools.reading.reader import Reader

from tests.support.tool_calls import TOOLS, WEATHER, call, read

QWEN = "\n".join(
    [
        "<tool_call>",
        '{"name": "get_current_temperature", "arguments": {"location": "San Francisco, CA, USA"}}',
        "</tool_call>",
        "<tool_call>",
        '{"name": "get_temperature_date", "arguments": {"location": "San Francisco, CA, USA", "date": "2024-10-01"}}',
        "</tool_call>",
    ]
)
# What Qwen2.5's template does with an answer of the assistant, shortened.
TEMPLATE = """{{- message.content }}
{%- for tool_call in message.tool_calls %}
    {%- set tool_call = tool_call.function %}
    {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
    {{- tool_call.arguments | tojson }}
    {{- '}\\n</tool_call>' }}
{%- endfor %}"""


def test_calls_of_qwen() -> None:
    assert read(Hermes(), QWEN) == [
        CallStarted(0, "get_current_temperature"),
        CallArguments(0, '{"location": "San Francisco, CA, USA"}'),
        CallEnded(0),
        CallStarted(1, "get_temperature_date"),
        CallArguments(1, '{"location": "San Francisco, CA, USA", "date": "2024-10-01"}'),
        CallEnded(1),
    ]


def test_the_older_order_of_keys() -> None:
    """Hermes 2 Pro writes the arguments first: they are held until the name is known."""
    reader = Reader(Hermes(), TOOLS)
    assert reader.push('<tool_call>\n{"arguments": {"symbol": "TSLA"}, ') == []
    assert reader.push('"name": "get_stock_fundamentals"}') == [
        CallStarted(0, "get_stock_fundamentals"),
        CallArguments(0, '{"symbol": "TSLA"}'),
        CallEnded(0),
    ]
    assert reader.push("\n</tool_call>") == reader.finish() == []


def test_arguments_come_as_they_are_written() -> None:
    reader = Reader(Hermes(), TOOLS)
    assert reader.push("Let me see.\n\n<tool_") == [TextPiece("Let me see.")]
    assert reader.push('call>{"name": "now", "arguments"') == []
    assert reader.push(': {"a": "b') == [CallStarted(0, "now"), CallArguments(0, '{"a": "b')]
    assert reader.push("c") == [CallArguments(0, "c")]
    assert reader.push('"}') == [CallArguments(0, '"}')]
    assert reader.push("}") == [CallEnded(0)]
    assert reader.push("\n</tool_call>\n") == reader.finish() == []


def test_a_call_without_arguments_gets_empty_ones() -> None:
    ended = [CallStarted(0, "now"), CallArguments(0, "{}"), CallEnded(0)]
    assert read(Hermes(), '<tool_call>{"name": "now"}</tool_call>') == ended


def test_arguments_in_a_text() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert read(Hermes(), text) == [CallStarted(0, "f"), CallArguments(0, '{"a": 1}'), CallEnded(0)]


def test_what_only_looks_like_a_call_is_text() -> None:
    for text in (
        "Write <tool_call> before it.",
        "<tool_call>",
        '<tool_call>{"name": "not a name", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>["now"]</tool_call>',
        "a < b",
    ):
        expected = CallBroken(0, text) if text == "<tool_call>" else TextPiece(text)
        assert read(Hermes(), text) == [expected]


def test_a_call_after_something_that_looks_like_one() -> None:
    text = '<tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert read(Hermes(), text) == [
        TextPiece("<tool_call>"),
        CallStarted(0, "now"),
        CallArguments(0, "{}"),
        CallEnded(0),
    ]


def test_arguments_that_are_not_json_break_the_call_and_no_other() -> None:
    broken = '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>'
    assert read(Hermes(), f"{broken}\n{Hermes().render_call(call('now'))} Done.") == [
        CallStarted(0, "now"),
        CallArguments(0, '{"a": tru'),
        CallBroken(0, broken),
        CallStarted(1, "now"),
        CallArguments(1, "{}"),
        CallEnded(1),
        TextPiece(" Done."),
    ]


def test_a_whole_object_is_a_call_although_the_end_of_its_markup_is_missing() -> None:
    whole = [CallStarted(0, "now"), CallArguments(0, "{}"), CallEnded(0)]
    assert read(Hermes(), '<tool_call>{"name": "now", "arguments": {}}\n</tool') == whole
    assert read(Hermes(), '<tool_call>{"name": "now", "arguments": {}}\nDone.') == [*whole, TextPiece("\nDone.")]


def test_the_template_of_qwen_writes_calls_as_we_do() -> None:
    calls = [call("get_weather", city="Zürich", days=2), call("now")]
    functions = [{"function": {"name": each.name, "arguments": each.values}} for each in calls]
    environment = jinja2.Environment(autoescape=False)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
    template = environment.from_string(TEMPLATE)
    assert template.render(message={"content": "So.", "tool_calls": functions}) == Hermes().render("So.", calls)


def test_what_a_template_is_given() -> None:
    assert Hermes().template_arguments([WEATHER]) == {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "The weather of a place.",
                    "parameters": WEATHER.parameters,
                },
            }
        ]
    }
