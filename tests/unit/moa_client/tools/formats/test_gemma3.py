"""Examples of Google's page on calls with Gemma 3."""

from __future__ import annotations

import pytest
from moa_client.tools.formats.gemma3 import Gemma3
from moa_client.tools.reading.pieces import TextPiece
from moa_client.tools.tool import Tool

from tests.support.tool_calls import call, events_of, read

PRODUCT = Tool(
    "get_product_name_by_PID",
    "Finds the name of a product by its Product ID",
    {"type": "object", "properties": {"PID": {"type": "string"}}, "required": ["PID"]},
)
EVENTS = events_of([call("get_product_name_by_PID", PID="807ZPKBL9V")])
OBJECT = '{"name": "get_product_name_by_PID", "parameters": {"PID": "807ZPKBL9V"}}'


@pytest.mark.parametrize(
    "text",
    [
        OBJECT,
        f"```json\n{OBJECT}\n```",
        f"```json\n[{OBJECT}]\n```",
        f"```tool_code\n{OBJECT}\n```",
        '```tool_code\nget_product_name_by_PID(PID="807ZPKBL9V")\n```',
        '```tool_code\n[get_product_name_by_PID(PID="807ZPKBL9V")]\n```',
    ],
)
def test_a_call(text: str) -> None:
    assert read(Gemma3(), text, tools=[PRODUCT]) == EVENTS


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "x", "parameters": {}}\n```',
        '```json\n"x"\n```',
        "```tool_code\nprint(1)\n```",
        "```python\nget_product_name_by_PID()\n```",
    ],
)
def test_other_blocks_are_text(text: str) -> None:
    assert read(Gemma3(), text, tools=[PRODUCT]) == [TextPiece(text)]
