"""Tools, calls of them, and answers that are read for calls in pieces of any size."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from moa_client.tools.answer_reader import AnswerReader, Piece, joined
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
