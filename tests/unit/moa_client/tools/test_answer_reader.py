"""What holds of all forms and marks, however a text is cut; and examples of each family's own documents."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from time import process_time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from moa_client.tools.answer_reader import (
    DEFAULT,
    FORMATS,
    AnswerReader,
    CallPiece,
    Piece,
    ReasoningPiece,
    TextPiece,
    find_format,
    held_back,
    split_by,
)
from moa_client.tools.formats import Gemma4, Harmony, Hermes, Llama, Mistral, Mistral11, QwenXml, ToolFormat
from moa_client.tools.thinking import THINKINGS, Marks, ReasoningMarks, Thinking, find_thinking, marks_from
from moa_client.tools.tool import MOST_DEPTH, Tool, ToolCall

from tests.support.family_templates import FAMILY_TEMPLATES
from tests.support.tool_calls import TOOLS, call, read

HARMONY, GEMMA4, MISTRAL, TAGS = THINKINGS
each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)
MARKS = sorted({mark for form in FORMATS for mark in (*form.openings, form.closing) if mark})


def events_of(calls: Sequence[ToolCall]) -> list[Piece]:
    return [CallPiece(index, each.name, each.arguments) for index, each in enumerate(calls)]


PARIS = events_of([call("get_weather", city="Paris")])
OBJECT = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
NOW, ONE = '<tool_call>{"name": "now", "arguments": {}}</tool_call>', [CallPiece(0, "now", "{}")]
TO_WEATHER = "commentary to=functions.get_weather <|constrain|>json<|message|>"
BAD = '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>'
ODD = '<tool_call>{"name": "f", "arguments": {"a": "\\ud800é", "b": -1e999}}</tool_call>'
Case = tuple[ToolFormat, str, list[Piece]]


def calls(form: ToolFormat, *texts: str) -> list[Case]:
    return [(form, text, [*PARIS]) for text in texts]


def nones(form: ToolFormat, *texts: str) -> list[Case]:
    """What only looks like a call is text."""
    return [(form, text, [TextPiece(text)]) for text in texts]


CASES: list[Case] = [
    *calls(
        Hermes(),
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        '<tool_call>{"arguments": {"city":"Paris"}, "id": 1, "name": "get_weather"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}\n</tool',
    ),
    (Hermes(), '<tool_call>{"name": "now"}</tool_call>', [*ONE]),
    (Hermes(), f"<tool_call>{NOW}", [TextPiece("<tool_call>"), *ONE]),
    (Hermes(), f"{NOW[:-12]}\nDone.", [*ONE, TextPiece("\nDone.")]),
    (
        Hermes(),
        f"So.\n\n{NOW}\n \n{NOW}\n\nDone.",
        [TextPiece("So."), *ONE, CallPiece(1, "now", "{}"), TextPiece("\n\nDone.")],
    ),
    (Hermes(), f"{BAD}\n{NOW} Done.", [TextPiece(BAD), *ONE, TextPiece(" Done.")]),
    (Hermes(), ODD, [CallPiece(0, "f", '{"a": "\N{REPLACEMENT CHARACTER}é", "b": -1.7976931348623157e+308}')]),
    *nones(
        Hermes(), "Write <tool_call> before it.", '<tool_call>{"name": "get_weather", "parameters": {"city": "Pa',
        '<tool_call>{"name": "not a name", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        f'<tool_call>{{"name": "now", "arguments": {{"a": {"[" * 64}{"]" * 64}}}}}</tool_call>',
    ),
    *calls(
        QwenXml(),
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    ),
    (QwenXml(), NOW, [*ONE]),
    (QwenXml(), "<tool_call>\n<function=now>\n</function>\n</tool_call>", [*ONE]),
    *nones(QwenXml(), "Write <function=name> and so on.", "Write <function=name></function>."),
    *calls(Gemma4(), '<|tool_call>call:get_weather{ <|"|>city<|"|>: <|"|>Paris<|"|> }<tool_call|>'),
    (
        Gemma4(),
        '<|tool_call>call:f{t:<|"|>a "b"\n\\c<|"|>,l:[<|"|>x<|"|>,1],o:{x:1.5,y:true},n:null}<tool_call|>',
        [CallPiece(0, "f", '{"t": "a \\"b\\"\\n\\\\c", "l": ["x", 1], "o": {"x": 1.5, "y": true}, "n": null}')],
    ),
    *nones(Gemma4(), f"<|tool_call>call:now{{a:{'[' * MOST_DEPTH}{']' * MOST_DEPTH}}}<tool_call|>"),
    *nones(
        Gemma4(), *(f"<|tool_call>{each}<tool_call|>" for each in ("f{}", "call:f{a:b}", "call:f{a:1,}", "call:f{a}"))
    ),
    *calls(Mistral(), f"[TOOL_CALLS] {OBJECT}", f"[TOOL_CALLS] [{OBJECT}]", '[TOOL_CALLS]get_weather{"city": "Paris"}'),
    *calls(Mistral11(), *(f'[TOOL_CALLS]get_weather{it}{{"city": "Paris"}}' for it in ("", "[CALL_ID]9mT[ARGS]"))),
    (Mistral(), f'[TOOL_CALLS] [{OBJECT}, "and so on"]', [*PARIS, TextPiece(', "and so on"]')]),
    *calls(Llama(), f"\n\n{OBJECT}\n", f"<|python_tag|>{OBJECT}"),
    (Llama(), f"{OBJECT};\n{OBJECT}", [*PARIS, CallPiece(1, "get_weather", '{"city": "Paris"}')]),
    *nones(
        Llama(), f"For example: {OBJECT}", '{"name": "Bob", "parameters": {"age": 3}}',
        '{"name": "get_weather", "parameters": [1]}', "<|python_tag|>print(1)",
    ),
    *calls(
        Harmony(),
        f'<|channel|>{TO_WEATHER}{{"city": "Paris"}}<|call|>',
        f'<|start|>assistant<|channel|>{TO_WEATHER}{{"city": "Paris"}}',
        '<|start|>assistant to=functions.get_weather<|channel|>analysis<|message|>{"city": "Paris"}<|end|>',
    ),
    *nones(Harmony(), "<|channel|>commentary to=browser.search<|message|>{}"),
    (Harmony(), "<|channel|>final<|message|>2 + 2 = 4.<|return|>", [TextPiece("2 + 2 = 4.")]),
    (Harmony(), "<|channel|>final<|mess", []),
    (
        Harmony(),
        f'<|channel|>commentary<|message|>Ask.<|end|><|start|>assistant<|channel|>{TO_WEATHER}{{"city": "Paris"}}',
        [TextPiece("Ask."), *PARIS],
    ),
]  # fmt: skip


def cuts() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 400), max_size=12)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def texts() -> st.SearchStrategy[str]:
    """Text of an argument, with what looks like markup."""
    looks = ["<tool_call>", "</tool", "\n", '"', "\\", "}", "[TOOL_CALLS]", "<|call", "```", '<|"|', ";", "</param"]
    return st.lists(_TEXT | st.sampled_from(looks), max_size=4).map("".join)


def calls_of_tools() -> st.SearchStrategy[ToolCall]:
    weather = st.fixed_dictionaries({"city": texts()}, optional={"days": st.integers(-(10**9), 10**9)})
    place = st.fixed_dictionaries(
        {"x": st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3)), "exact": st.booleans()}
    )
    note = st.fixed_dictionaries(
        {"text": texts(), "place": place},
        optional={
            "tags": st.lists(texts(), max_size=3),
            "level": st.sampled_from(["low", "high"]),
            "until": st.none() | st.integers(0, 10**6),
        },
    )
    return st.one_of(
        weather.map(lambda arguments: call("get_weather", **arguments)),
        note.map(lambda arguments: call("take-note", **arguments)),
        st.just(call("now")),
    )


def model_texts() -> st.SearchStrategy[str]:
    parts = [*MARKS, *(mark for each in THINKINGS for mark in each.all), *(text for _, text, _ in CASES)]
    part = st.sampled_from(parts) | st.sampled_from(list(' \n{}[]",;:<`|')) | st.text(max_size=3)
    cut_part = st.tuples(part, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
    return st.lists(part | cut_part, max_size=10).map("".join)


@each_format
@given(
    calls=st.lists(calls_of_tools(), min_size=1, max_size=3), places=cuts(), text=st.sampled_from(["", "Let me see."])
)
def test_what_is_written_is_read(form: ToolFormat, calls: list[ToolCall], places: list[int], text: str) -> None:
    before: list[Piece] = [TextPiece(text)] if text else []
    assert read(form, form.render(text, calls), places) == before + events_of(calls)


def in_xml(each: ToolCall) -> str:
    lines = ""
    for key, value in each.values.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += f"<parameter={key}>\n{written}\n</parameter>\n"
    return f"<tool_call>\n<function={each.name}>\n{lines}</function>\n</tool_call>"


def in_gemmas(value: Any) -> str:
    match value:
        case ToolCall():
            return f"<|tool_call>call:{value.name}{in_gemmas(value.values)}<tool_call|>"
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{in_gemmas(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(in_gemmas, value)) + "]"
    return json.dumps(value)


@given(calls=st.lists(calls_of_tools(), min_size=1, max_size=3), places=cuts())
def test_notations_of_their_own_are_read(calls: list[ToolCall], places: list[int]) -> None:
    said = [json.dumps(each.values, ensure_ascii=False).replace('\\"', '"') for each in calls]
    if not any("</parameter>" in each for each in said):
        assert read(QwenXml(), "\n".join(map(in_xml, calls)), places) == events_of(calls)
    if not any('<|"|>' in each for each in said):
        assert read(Gemma4(), "".join(map(in_gemmas, calls)), places) == events_of(calls)


@each_format
@given(
    text=model_texts(), places=cuts(), marks=st.sampled_from([None, *THINKINGS]), is_open=st.booleans(),
    drops_others=st.booleans(),
)  # fmt: skip
def test_a_text_is_read_alike_in_all_pieces(
    form: ToolFormat, text: str, places: list[int], marks: Marks | None, is_open: bool, drops_others: bool
) -> None:
    how: dict[str, Any] = {"marks": marks, "is_open": is_open and marks is not None, "drops_others": drops_others}
    whole = read(form, text, **how)
    assert read(form, text, places, **how) == read(form, text, range(len(text)), **how) == whole
    assert read(None, text, places, **how) == read(None, text, **how)
    calls = [piece for piece in whole if isinstance(piece, CallPiece)]
    assert [each.index for each in calls] == list(range(len(calls)))
    assert all(isinstance(json.loads(each.arguments), dict) for each in calls)
    if not calls and not isinstance(form, Harmony) and marks is None:  # whose marks are dropped
        assert "".join(piece.text for piece in whole if isinstance(piece, TextPiece)) == text


@each_format
@given(call=calls_of_tools(), data=st.data())
def test_a_call_that_is_cut_is_whole_or_text(form: ToolFormat, call: ToolCall, data: st.DataObject) -> None:
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
def test_a_token_costs_the_same_at_the_end_of_a_long_call(form: ToolFormat) -> None:
    def seconds(flood: str, pieces: int) -> float:
        reader, begun = AnswerReader(TAGS, form, TOOLS), process_time()
        reader.push(form.render("", [call("get_weather", city="Paris")])[:-20] + '"')
        for _ in range(pieces):
            reader.push(flood)
        reader.finish()
        return process_time() - begun

    opening = form.openings[0]
    for flood in ('{"name": "now", "arguments": {"a": "', "a", " ", "<", *form.openings, opening + form.closing):
        few = seconds(flood, 1000)
        assert seconds(flood, 16_000) < 2 + 32 * few  # not 256 times, as where a token costs what all do


def test_a_family_is_known_by_its_template() -> None:
    assert [find_format(" ".join(form.signs)) for form in FORMATS] == list(FORMATS)
    coder = "'\\n<tool_call>\\n<function=' + tool_call.name + '>\\n'"
    assert isinstance(find_format(coder), QwenXml)
    families = ("phi 4", "llama 3", "gemma 3")
    assert all(find_format(FAMILY_TEMPLATES[family]) is DEFAULT for family in families)
    assert [find_thinking(each.sign) for each in THINKINGS] == list(THINKINGS)
    assert find_thinking(FAMILY_TEMPLATES["phi 4"]) is None
    assert TAGS.is_open("<|im_start|>assistant\n<think>\n")
    assert not TAGS.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert GEMMA4.is_open("<|turn>model\n<|channel>thought\n")


@pytest.mark.parametrize(("form", "text", "pieces"), CASES)
def test_calls_as_models_write_them_and_what_is_text(form: ToolFormat, text: str, pieces: list[Piece]) -> None:
    assert read(form, text) == pieces


@pytest.mark.parametrize(("schema", "written", "value"), [
    ({"type": "string"}, "5", "5"), ({"type": "number"}, "5", 5), ({"type": "boolean"}, "True", True),
    ({"type": ["string", "null"]}, "null", None), ({"type": "array"}, '["a", 1]', ["a", 1]),
    ({"anyOf": [{"type": "object"}, {"type": "null"}]}, '{"a": "</parameter>"}', {"a": "</parameter>"}),
    ({"enum": [1, 2]}, "1", 1), ({}, "5", 5),
])  # fmt: skip
def test_values_of_qwen_are_read_by_the_schema(schema: object, written: str, value: object) -> None:
    tool = Tool("f", parameters={"type": "object", "properties": {"x": schema}})
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    (piece,) = read(QwenXml(), text, tools=[tool])
    assert isinstance(piece, CallPiece)
    assert json.loads(piece.arguments)["x"] == value


@pytest.mark.parametrize(("marks", "is_open", "text", "reasoning", "said"), [
    (TAGS, False, "<think>\nFirst.\n\nThen.\n</think>\n\nAn answer.\n", "First.\n\nThen.", "An answer.\n"),
    (TAGS, True, "First.\n\nThen.\n</think>\n\nAn answer.\n", "First.\n\nThen.", "An answer.\n"),
    (MISTRAL, False, "[THINK]First.[/THINK]An answer.", "First.", "An answer."),
    (GEMMA4, False, "<|channel>thought\nFirst.<channel|>An answer.", "First.", "An answer."),
    (TAGS, False, "<think>\n\n</think>\n\nHello", "", "Hello"),
    (TAGS, False, "Models write <think> and </think>.", "", "Models write <think> and </think>."),
    (TAGS, False, "<think>x</think>Then <think>.", "x", "Then <think>."),
    (TAGS, False, "<think>\nFirst. </thi", "First. </thi", ""),
    (TAGS, False, "<thi", "", "<thi"),
])  # fmt: skip
def test_reasoning_before_an_answer(marks: Thinking, is_open: bool, text: str, reasoning: str, said: str) -> None:
    pieces: list[Piece] = [ReasoningPiece(reasoning)] if reasoning else []
    assert read(None, text, marks=marks, is_open=is_open) == pieces + [TextPiece(each) for each in (said,) if each]


FIRST, THEN = "<|channel|>analysis<|message|>First.<|end|>", "<|channel|>commentary<|message|>Then.<|end|>"
ANSWER = f"{FIRST}<|start|>assistant{THEN}<|start|>assistant<|channel|>final<|message|>\n An answer. "


def test_reasoning_comes_first_and_has_no_calls() -> None:
    text = f"Now <tool_call>?\n</think>\n\n{NOW}"
    assert read(Hermes(), text, marks=TAGS, is_open=True) == [ReasoningPiece("Now <tool_call>?"), *ONE]
    text = f'{FIRST}<|start|>assistant<|channel|>{TO_WEATHER}{{"city": "Paris"}}<|call|>'
    assert read(Harmony(), text, marks=HARMONY) == [ReasoningPiece("First."), *PARIS]
    again = [ReasoningPiece("First."), TextPiece("Then."), ReasoningPiece("First.")]
    assert read(Harmony(), f"{FIRST}<|start|>assistant{THEN}<|start|>assistant{FIRST}", marks=HARMONY) == again


def test_text_comes_as_it_is_written_and_a_call_with_its_closing_mark() -> None:
    reader = AnswerReader(None, Hermes(), TOOLS)
    assert (reader.push("1 <"), reader.push(" 2")) == ([TextPiece("1")], [TextPiece(" < 2")])
    assert reader.push("\n\n<tool_") == []
    assert reader.push('call>{"name": "now", "arguments": {"a": "</tool_call>"') == []
    assert (reader.push("}}</tool_call"), reader.push(">")) == ([], [CallPiece(0, "now", '{"a": "</tool_call>"}')])
    assert (reader.push("\n3 "), reader.finish()) == ([TextPiece("\n3")], [TextPiece(" ")])
    assert AnswerReader(None, Hermes(), TOOLS).push("<think>, <tool_call> b") == [TextPiece("<think>, <tool_call> b")]
    assert AnswerReader().push("a\n\n") == [TextPiece("a\n\n")]  # nothing can come that drops the space


OPENED = ReasoningMarks(TAGS.openings, TAGS.closings, opened=("", "high"))
CHANNELS = ReasoningMarks(HARMONY.openings, HARMONY.closings, True, HARMONY.others)


def test_reasoning_grows_apart_from_the_text_and_is_counted() -> None:
    split = split_by(OPENED, None)
    for text, tokens, apart in (
        ("Fi", 1, ("Fi", "", True)),
        ("First.\n</thi", 3, ("First.", "", True)),
        ("First.\n</think>\n\nAn", 5, ("First.", "An", False)),
        ("First.\n</think>\n\nAn answer", 6, ("First.", "An answer", False)),
    ):
        split.read(text, tokens)
        assert (split.reasoning, split.text, split.is_thinking) == apart
    assert (split.reasoning_tokens, split.ahead(", or")) == (5, ("", ", or"))
    split = split_by(OPENED, "none")
    split.read("<think>Hm</think>An", 4)
    split.read("<think>Hm</think>An answer", 5)
    assert split.reasoning_tokens == 4


@given(st.lists(st.integers(0, len(ANSWER))))
def test_the_marks_of_channels_are_never_shown(places: list[int]) -> None:
    split = split_by(CHANNELS, "none")
    for end in [*sorted(places), len(ANSWER)]:
        split.read(ANSWER[:end])
        assert "<|" not in "".join([split.text, split.reasoning])
    reasoning, text = split.ahead()
    assert (split.reasoning + reasoning, split.text + text) == ("First.", "Then.An answer. ")
    fields = {name: value if name == "repeated" else list(value) for name, value in asdict(CHANNELS).items()}
    assert (marks_from(fields), marks_from(None)) == (CHANNELS, None)  # as they cross the socket
