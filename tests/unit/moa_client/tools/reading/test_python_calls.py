from __future__ import annotations

import json

import pytest
from moa_client.tools.formats.smollm3 import SmolLM3
from moa_client.tools.reading.pieces import CallArguments, TextPiece

from tests.support.tool_calls import read


def arguments_of(code: str) -> list[object]:
    """The arguments of the calls in some code."""
    pieces = read(SmolLM3(), f"<code>{code}</code>")
    return [json.loads(piece.text) for piece in pieces if isinstance(piece, CallArguments)]


def test_arguments_by_place_and_by_name() -> None:
    assert arguments_of("get_weather('Paris', 3)") == [{"city": "Paris", "days": 3}]
    assert arguments_of("[get_weather(city='a\\d'), now()]") == [{"city": "a\\d"}, {}]
    assert arguments_of("get_weather(city={'a': [None, True, -1.5]})") == [{"city": {"a": [None, True, -1.5]}}]


@pytest.mark.parametrize(
    "code",
    [
        "get_weather(open('x'))",
        "get_weather(city=x)",
        "get_weather(1, 2, 3)",
        "get_weather('a', city='b')",
        "get_weather(**{})",
        "get_weather(city={1, 2})",
        "get_weather(city=b'')",
        "get_weather(days=1e999)",
        "os.system('x')",
        "unknown()",
        "now() +",
        "# nothing",
        "x\0",
        "(" * 10000,
    ],
)
def test_anything_else_is_text(code: str) -> None:
    text = f"<code>{code}</code>"
    assert read(SmolLM3(), text) == [TextPiece(text)]
