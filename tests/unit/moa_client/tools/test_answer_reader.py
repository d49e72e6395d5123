"""What holds of all forms, however a text is cut; and examples of each family's own documents."""

from __future__ import annotations

import json
from time import process_time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from moa_client.tools.answer_reader import DEFAULT, FORMATS, AnswerReader, CallPiece, Piece, find_format
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.gemma4 import Gemma4
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.formats.json_calls import Gemma3, Hermes, Llama, Mistral, Mistral11
from moa_client.tools.formats.qwen_xml import QwenXml, json_of
from moa_client.tools.thinking import THINKINGS, ReasoningPiece, TextPiece, ThinkingReader, held_back
from moa_client.tools.tool import MOST_DEPTH, Tool, ToolCall

from tests.support.family_templates import FAMILY_TEMPLATES
from tests.support.tool_calls import TOOLS, call, calls_of_tools, cuts, events_of, read

each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)
MARKS = sorted({mark for form in FORMATS for mark in (*form.openings, *form.likely_openings, form.closing) if mark})
PARTS = (
    '{"name": "now", "arguments": {',
    '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    '"parameters": {"a": [1, true, null]}}',
    "get_weather[ARGS]{",
    "<function=get_weather>\n",
    "<parameter=city>\nParis\n</parameter>",
    "</function>",
    '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": "b"}',
    "<|channel|>final<|message|>",
    'call:get_weather{city:<|"|>Paris<|"|>}',
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
    before: list[Piece] = [TextPiece(text)] if text else []
    assert read(form, form.render(text, calls), places) == before + events_of(calls)


@each_format
@given(text=model_texts(), places=cuts())
def test_a_text_is_read_alike_in_all_pieces(form: ToolFormat, text: str, places: list[int]) -> None:
    whole = read(form, text)
    assert read(form, text, places) == whole
    assert read(form, text, range(len(text))) == whole
    calls = [piece for piece in whole if isinstance(piece, CallPiece)]
    assert [each.index for each in calls] == list(range(len(calls)))
    assert all(isinstance(json.loads(each.arguments), dict) for each in calls)
    if not calls and not isinstance(form, Harmony):  # whose marks are dropped
        assert "".join(piece.text for piece in whole if isinstance(piece, TextPiece)) == text


@each_format
@given(text=st.text(max_size=40))
def test_text_without_marks_comes_out_as_it_is(form: ToolFormat, text: str) -> None:
    assume(not any(mark in text for mark in MARKS))
    assert read(form, text) == ([TextPiece(text)] if text else [])


@each_format
@given(call=calls_of_tools(), data=st.data())
def test_a_call_that_is_cut_is_whole_or_text(form: ToolFormat, call: ToolCall, data: st.DataObject) -> None:
    assume(writable(form, call))
    written = form.render("", [call])
    text = written[: data.draw(st.integers(0, len(written)))]
    assume(not isinstance(form, Gemma4) or not held_back(text, ['<|"|>']))  # which is one token
    match read(form, text):
        case [CallPiece(0, name, arguments)]:
            assert (name, json.loads(arguments)) == (call.name, call.values)
        case [TextPiece(raw)]:
            assert raw == text
        case pieces:
            assert not pieces
            assert not text or isinstance(form, Harmony)  # the header of a message


@each_format
@pytest.mark.parametrize("flood", ['{"name": "now", "arguments": {"a": "', "a", " ", "<", "</tool_call>", "\n```"])
def test_a_token_costs_the_same_at_the_end_of_a_long_call(form: ToolFormat, flood: str) -> None:
    def seconds(pieces: int) -> float:
        reader, begun = AnswerReader(None, form, TOOLS), process_time()
        reader.push(form.render("", [call("get_weather", city="Paris")])[:-20] + '"')
        for _ in range(pieces):
            reader.push(flood)
        reader.finish()
        return process_time() - begun

    assert seconds(8000) < 0.5 + 20 * seconds(1000)


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


def test_a_family_is_known_by_its_template() -> None:
    assert [type(find_format(template)).__name__ for template in TEMPLATES.values()] == list(TEMPLATES)
    assert all(find_format(FAMILY_TEMPLATES[family]) is DEFAULT for family in ("phi 4", "olmo", "llama 3", "granite"))


# ------------------------------------------------------------ examples

PARIS = events_of([call("get_weather", city="Paris")])
OBJECT = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
TO_WEATHER = "commentary to=functions.get_weather <|constrain|>json<|message|>"
CALLS: list[tuple[ToolFormat, str]] = [
    (Hermes(), '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'),
    (Hermes(), '<tool_call>{"arguments": {"city": "Paris"}, "id": 1, "name": "get_weather"}</tool_call>'),
    (Hermes(), '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool'),
    (QwenXml(), "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>"),
    (QwenXml(), "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"),
    (Gemma4(), '<|tool_call>call:get_weather{ <|"|>city<|"|>: <|"|>Paris<|"|> }<tool_call|>'),
    *((form, f"[TOOL_CALLS] {OBJECT}") for form in (Mistral(), Mistral11())),
    *((form, f"[TOOL_CALLS] [{OBJECT}]") for form in (Mistral(), Mistral11())),
    *(
        (form, f'[TOOL_CALLS]get_weather{mark}{{"city": "Paris"}}')
        for form in (Mistral(), Mistral11())
        for mark in ("", "[ARGS]", "[CALL_ID]VvvODy9mT[ARGS]")
    ),
    (Llama(), f"\n\n{OBJECT}\n"),
    (Llama(), f"<|python_tag|>{OBJECT}"),
    (Gemma3(), OBJECT),
    (Gemma3(), f"```json\n[{OBJECT}]\n```"),
    (Gemma3(), f"```tool_code\n{OBJECT}\n```"),
    (Harmony(), f'<|channel|>{TO_WEATHER}{{"city": "Paris"}}<|call|>'),
    (Harmony(), f'<|start|>assistant<|channel|>{TO_WEATHER}{{"city": "Paris"}}'),
    (Harmony(), '<|start|>assistant to=functions.get_weather<|channel|>analysis<|message|>{"city": "Paris"}<|end|>'),
]
TEXTS: list[tuple[ToolFormat, str]] = [
    *(
        (Hermes(), text)
        for text in (
            "Write <tool_call> before it.",
            '<tool_call>{"name": "not a name", "arguments": {}}</tool_call>',
            '<tool_call>{"arguments": {}}</tool_call>',
            '<tool_call>["now"]</tool_call>',
            '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
            f'<tool_call>{{"name": "now", "arguments": {{"a": {"[" * 64}{"]" * 64}}}}}</tool_call>',
            "a < b",
        )
    ),
    (QwenXml(), "Write <function=name> and so on."),
    (Gemma4(), "<|tool_call>f{}"),
    *((Gemma4(), f"<|tool_call>call:now{each}<tool_call|>") for each in ("{a:b}", "{:1}", "{a:1,}", "{a}", "{a:[1,]}")),
    (Gemma4(), f"<|tool_call>call:now{{a:{'[' * MOST_DEPTH}{']' * MOST_DEPTH}}}<tool_call|>"),
    *(
        (Llama(), text)
        for text in (
            f"For example: {OBJECT}",
            '{"name": "Bob", "parameters": {"age": 3}}',
            '{"name": "get_weather", "age": 3}',
            '{"name": "get_weather", "parameters": [1]}',
            '{"answer": 42}',
            "{}",
            "{not json",
            "<|python_tag|>print(1)",
        )
    ),
    *(
        (Gemma3(), text)
        for text in (
            '```json\n{"name": "x", "parameters": {}}\n```',
            '```json\n"x"\n```',
            "```tool_code\nprint(1)\n```",
            "```python\nnow()\n```",
        )
    ),
    (Harmony(), "<|channel|>commentary to=browser.search<|message|>{}"),
]


@pytest.mark.parametrize(("form", "text"), CALLS)
def test_a_call_as_models_write_it(form: ToolFormat, text: str) -> None:
    assert read(form, text) == PARIS


@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_what_only_looks_like_a_call_is_text(form: ToolFormat, text: str) -> None:
    assert read(form, text) == [TextPiece(text)]


NOW, ONE = '<tool_call>{"name": "now", "arguments": {}}</tool_call>', [CallPiece(0, "now", "{}")]
CUT = '{"name": "get_weather", "parameters": {"city": "Pa'


@pytest.mark.parametrize(
    ("form", "text", "pieces"),
    [
        (Hermes(), '<tool_call>{"name": "now"}</tool_call>', ONE),
        (Hermes(), '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', ONE),
        (Hermes(), f"<tool_call>{NOW}", [TextPiece("<tool_call>"), *ONE]),
        (Hermes(), '<tool_call>{"name": "now", "arguments": {}}\nDone.', [*ONE, TextPiece("\nDone.")]),
        (
            Hermes(),
            f"So.\n\n{NOW}\n \n{NOW}\n\nDone.",
            [TextPiece("So."), *ONE, CallPiece(1, "now", "{}"), TextPiece("\n\nDone.")],
        ),
        (
            Hermes(),
            f'<tool_call>{{"name": "now", "arguments": {{"a": tru}}}}</tool_call>\n{NOW} Done.',
            [
                TextPiece('<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>'),
                *ONE,
                TextPiece(" Done."),
            ],
        ),
        (Hermes(), f"<tool_call>{CUT}", [TextPiece(f"<tool_call>{CUT}")]),
        (QwenXml(), NOW, ONE),
        (QwenXml(), "<tool_call>\n<function=now>\n</function>\n</tool_call>", ONE),
        (
            Gemma4(),
            '<|tool_call>call:f{t:<|"|>a "b"\n\\c<|"|>,l:[<|"|>x<|"|>,1],o:{x:1.5,y:true},n:null}<tool_call|>',
            [CallPiece(0, "f", '{"t": "a \\"b\\"\\n\\\\c", "l": ["x", 1], "o": {"x": 1.5, "y": true}, "n": null}')],
        ),
        (
            Gemma4(),
            '<|tool_call>call:f{"t": "a: \\"<tool_call|>\\"", "n": 1}<tool_call|>',
            [CallPiece(0, "f", '{"t": "a: \\"<tool_call|>\\"", "n": 1}')],
        ),
        (Mistral(), f"[TOOL_CALLS] [{OBJECT}, {CUT}", [*PARIS, TextPiece(f", {CUT}")]),
        (Mistral(), f'[TOOL_CALLS] [{OBJECT}, "and so on"]', [*PARIS, TextPiece(', "and so on"]')]),
        (Harmony(), "<|channel|>final<|message|>2 + 2 = 4.<|return|>", [TextPiece("2 + 2 = 4.")]),
        (Harmony(), "<|channel|>final<|mess", []),
        (
            Harmony(),
            f'<|channel|>commentary<|message|>**Plan**: ask.<|end|><|start|>assistant<|channel|>{TO_WEATHER}{{"city": "Paris"}}',
            [TextPiece("**Plan**: ask."), *PARIS],
        ),
    ],
)
def test_calls_among_other_text(form: ToolFormat, text: str, pieces: list[Piece]) -> None:
    assert read(form, text) == pieces


@pytest.mark.parametrize("between", ["; ", ";", "\n"])
def test_several_calls_of_llama(between: str) -> None:
    calls = [call("get_weather", city="Paris"), call("get_weather", 1, city="Paris")]
    assert read(Llama(), f"{OBJECT}{between}{OBJECT}") == events_of(calls)


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
def test_values_of_qwen_are_read_by_the_schema(schema: object, written: str, value: object) -> None:
    tool = Tool("f", parameters={"type": "object", "properties": {"x": schema}})
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    (piece,) = read(QwenXml(), text, tools=[tool])
    assert isinstance(piece, CallPiece)
    assert json.loads(piece.arguments)["x"] == value
    assert json_of("9" * 5000, frozenset({"integer"})) == "9" * 5000  # which Python would not read


# ------------------------------------------------------------ as it comes


def test_text_comes_as_it_is_written_and_a_call_with_its_closing_mark() -> None:
    reader = AnswerReader(None, Hermes(), TOOLS)
    assert reader.push("1 <") == [TextPiece("1")]
    assert reader.push(" 2") == [TextPiece(" < 2")]
    assert reader.push("\n\n<tool_") == []
    assert reader.push('call>{"name": "now", "arguments": {"a": "</tool_call>"') == []
    assert reader.push("}}</tool_call") == []
    assert reader.push(">") == [CallPiece(0, "now", '{"a": "</tool_call>"}')]
    assert reader.push("\n3 ") == [TextPiece("\n3")]
    assert reader.finish() == [TextPiece(" ")]
    assert not reader.is_cut


def test_reasoning_comes_first_and_has_no_calls() -> None:
    reader = AnswerReader(ThinkingReader(THINKINGS[-1], is_open=True), Hermes(), TOOLS)
    assert [*reader.push(f"Now <tool_call>?\n</think>\n\n{NOW}"), *reader.finish()] == [
        ReasoningPiece("Now <tool_call>?"),
        *ONE,
    ]
    reader = AnswerReader(ThinkingReader(THINKINGS[0], is_open=False), Harmony(), TOOLS)
    text = (
        f'<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>{TO_WEATHER}{{"city": "Paris"}}<|call|>'
    )
    assert [*reader.push(text), *reader.finish()] == [ReasoningPiece("Hm."), *PARIS]
    assert AnswerReader(None, Hermes(), TOOLS).push("<think>") == [TextPiece("<think>")]


def test_an_answer_that_ends_within_a_call_says_so() -> None:
    for form, text, is_cut in ((Hermes(), "<tool_call>", True), (Llama(), '{"a', False), (Hermes(), NOW, False)):
        reader = AnswerReader(None, form, TOOLS)
        pieces = [*reader.push(text), *reader.finish()]
        assert (pieces == [TextPiece(text)], reader.is_cut) == (text != NOW, is_cut)
