"""What holds of all forms: however a text is cut, the same is read, nothing is lost, and what was read can be written."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.families import DEFAULT, FORMATS, find_format
from moa_client.tools.formats.gemma4 import Gemma4
from moa_client.tools.formats.harmony import CALL, Harmony
from moa_client.tools.formats.qwen_xml import QwenXml
from moa_client.tools.reading.pieces import (
    CallArguments,
    CallBroken,
    CallEnded,
    CallStarted,
    Piece,
    TextPiece,
)
from moa_client.tools.tool import ToolCall

from tests.support.family_templates import FAMILY_TEMPLATES
from tests.support.tool_calls import calls_of_tools, cuts, events_of, read

each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)
MARKS = sorted({mark for form in FORMATS for mark in (*form.openings, *form.likely_openings, form.closing) if mark})
PARTS = (
    '{"name": "now", "arguments": {',
    '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    '"parameters": {"a": [1, true, null]}}',
    "get_weather[ARGS]{",
    "<function=get_weather>\n",
    "<parameter=city>\nParis\n</parameter>",
    '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": "b"}',
    "<|channel|>final<|message|>",
    'call:get_weather{city:<|"|>Paris<|"|>}',
    "get_weather(city='Paris')",
    "Hello",
)


def model_texts() -> st.SearchStrategy[str]:
    """Text with marks and parts of calls in any order."""
    part = st.sampled_from([*MARKS, *PARTS]) | st.sampled_from(list(' \n{}[]",;:<`|')) | st.text(max_size=3)
    cut_part = st.tuples(part, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
    return st.lists(part | cut_part, max_size=10).map("".join)


def writable(form: ToolFormat, call: ToolCall) -> bool:
    """Whether the form can write this: its texts do not hold the mark that ends a text."""
    end = {QwenXml: "</parameter>", Gemma4: '<|"|>'}.get(type(form))
    return end is None or end not in json.dumps(call.values, ensure_ascii=False).replace('\\"', '"')


@each_format
@given(
    calls=st.lists(calls_of_tools(), min_size=1, max_size=3), places=cuts(), text=st.sampled_from(["", "Let me see."])
)
def test_what_is_written_is_read(form: ToolFormat, calls: list[ToolCall], places: list[int], text: str) -> None:
    assume(all(writable(form, each) for each in calls))
    written = form.render(text, calls)
    before: list[Piece] = [TextPiece(text)] if text else []
    assert read(form, written, places) == before + events_of(calls)


@each_format
@given(text=model_texts(), places=cuts())
def test_a_text_is_read_alike_in_all_pieces(form: ToolFormat, text: str, places: list[int]) -> None:
    whole = read(form, text)
    assert read(form, text, places) == whole
    assert read(form, text, range(len(text))) == whole


@each_format
@given(text=model_texts())
def test_calls_are_valid_and_in_order(form: ToolFormat, text: str) -> None:
    arguments = ""
    running: int | None = None
    following = 0
    for piece in read(form, text):
        match piece:
            case CallStarted(index, _):
                assert (running, index) == (None, following)
                running, following, arguments = index, index + 1, ""
            case CallArguments(index, part):
                assert index == running
                arguments += part
            case CallEnded(index):
                assert index == running
                assert isinstance(json.loads(arguments), dict)
                running = None
            case CallBroken(index, _):
                assert index == (following if running is None else running)
                running = None
            case TextPiece(part):
                assert running is None
                assert part
    assert running is None


@each_format
@given(text=st.text(max_size=40))
def test_text_without_marks_comes_out_as_it_is(form: ToolFormat, text: str) -> None:
    assume(not any(mark in text for mark in MARKS))
    assert read(form, text) == ([TextPiece(text)] if text else [])


@pytest.mark.parametrize("form", [form for form in FORMATS if not isinstance(form, Harmony)])  # its marks are dropped
@given(text=model_texts())
def test_text_of_no_call_is_unchanged(form: ToolFormat, text: str) -> None:
    pieces = read(form, text)
    assume(all(isinstance(piece, TextPiece) for piece in pieces))
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == text


@each_format
@given(call=calls_of_tools(), data=st.data())
def test_of_a_call_that_is_cut_nothing_is_lost(form: ToolFormat, call: ToolCall, data: st.DataObject) -> None:
    assume(writable(form, call))
    written = form.render("", [call])
    text = written[: data.draw(st.integers(0, len(written)))]
    pieces = read(form, text)
    match pieces[-1:]:
        case [CallEnded(_)]:
            assert pieces == events_of([call])
        case [CallBroken(0, raw)]:
            assert raw == text
        case [TextPiece(raw)] if len(pieces) > 1:
            assert isinstance(form, Harmony)  # the end of its call is an end of text, which is not told in pieces
            assert CALL.startswith(raw)
        case [TextPiece(raw)]:
            assert raw == text
        case _:
            assert not text or isinstance(form, Harmony)  # the header of a message


TEMPLATES = {
    "Harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>",
    "Gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
    "SmolLM3": "{%- if xml_tools %}<tools>{{ xml_tools }}</tools> in <tool_call></tool_call>{% endif %}",
    "QwenXml": "'\\n<tool_call>\\n<function=' + tool_call.name + '>\\n'",
    "Hermes": '{{- \'<tool_call>\\n{"name": "\' }}{{- tool_call.name }}',
    "Mistral11": '{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}',
    "Mistral": '{{- "[TOOL_CALLS] [" }}{%- for tool_call in tool_calls %}',
    "Llama": "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{{- '\"parameters\": ' }}",
    "Gemma3": FAMILY_TEMPLATES["gemma 3"],
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_family_is_known_by_its_template(family: str) -> None:
    assert type(find_format(TEMPLATES[family])).__name__ == family


@pytest.mark.parametrize("family", ["phi 4", "olmo", "llama 3", "granite"])
def test_a_template_without_calls_gets_the_default(family: str) -> None:
    assert find_format(FAMILY_TEMPLATES[family]) is DEFAULT
