"""SmolLM3 is told of tools in XML, and may write Python."""

from __future__ import annotations

import pytest
from moa_client.tools.formats.smollm3 import SmolLM3
from moa_client.tools.reading.pieces import TextPiece

from tests.support.tool_calls import WEATHER, call, events_of, read


def test_python_that_calls_tools() -> None:
    code = "<code>\nget_weather('Paris', days=3)\nnow()\n</code>"
    assert read(SmolLM3(), code) == events_of([call("get_weather", city="Paris", days=3), call("now")])


@pytest.mark.parametrize(
    "code",
    [
        "<code>x = get_weather('Paris')</code>",
        "<code>print(1)</code>",
        "<code></code>",
        "Use <code>a < b</code> here.",
        "<code>get_weather(",
    ],
)
def test_other_python_is_text(code: str) -> None:
    assert read(SmolLM3(), code) == [TextPiece(code)]


def test_its_template_has_an_argument_of_its_own() -> None:
    assert SmolLM3().template_arguments([WEATHER]) == {"xml_tools": [WEATHER.function()]}
