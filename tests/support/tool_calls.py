"""Tools, calls of them, and answers that are read for calls in pieces of any size."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from moa_client.tools.answer_reader import AnswerReader, CallPiece, Piece, joined
from moa_client.tools.formats import ToolFormat
from moa_client.tools.tool import Tool, ToolCall


def schema(required: str, **properties: Any) -> dict[str, Any]:
    """Of an object. `required`: names apart by spaces."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


TEXT = {"type": "string"}
WEATHER = Tool("get_weather", "The weather of a place.", schema("city", city=TEXT, days={"type": "integer"}))
NOTE = Tool(
    "take-note",
    "Keeps a note.",
    schema(
        "text place",
        text=TEXT,
        tags={"type": "array", "items": TEXT},
        place=schema("x exact", x={"type": "number"}, exact={"type": "boolean"}),
        level={"type": "string", "enum": ["low", "high"]},
        until={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ),
)
NOW = Tool("now", "The time.", {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (WEATHER, NOTE, NOW)


def call(name: str, index: int = 0, /, **arguments: Any) -> ToolCall:
    """A call with these arguments."""
    return ToolCall(f"call_{index}", name, json.dumps(arguments, ensure_ascii=False))


def events_of(calls: Sequence[ToolCall]) -> list[Piece]:
    """What reading these calls gives."""
    return [CallPiece(index, each.name, each.arguments) for index, each in enumerate(calls)]


def read(
    form: ToolFormat | None, text: str, cuts: Sequence[int] = (), tools: Sequence[Tool] = TOOLS, **more: Any
) -> list[Piece]:
    """What comes out of a text that comes in pieces, cut at these places; `more`: of the reader."""
    reader = AnswerReader(more.pop("marks", None), form, tools, **more)
    pieces: list[Piece] = []
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    for start, end in pairwise(places):
        pieces += reader.push(text[start:end])
    return joined([*pieces, *reader.finish()])


def cuts() -> st.SearchStrategy[list[int]]:
    """Places at which a text is cut."""
    return st.lists(st.integers(0, 400), max_size=12)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def texts() -> st.SearchStrategy[str]:
    """Text of an argument, with what looks like markup."""
    looks = ["<tool_call>", "</tool", "\n", '"', "\\", "}", "[TOOL_CALLS]", "<|call", "```", '<|"|', ";", "</param"]
    return st.lists(_TEXT | st.sampled_from(looks), max_size=4).map("".join)


def calls_of_tools() -> st.SearchStrategy[ToolCall]:
    """Calls of the tools, with arguments of their schemas."""
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
