"""Examples of Mistral's tokenizers of version 3, 11 and 13."""

from __future__ import annotations

import pytest
from moa_client.tools.formats.mistral import Mistral, Mistral11
from moa_client.tools.ids import call_id
from moa_client.tools.reading.pieces import CallArguments, CallBroken, CallEnded, CallStarted, TextPiece

from tests.support.tool_calls import call, events_of, read

EVENTS = events_of([call("get_weather", city="Paris")])


@pytest.mark.parametrize("form", [Mistral(), Mistral11()], ids=["older", "newer"])
@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        '[TOOL_CALLS][{"arguments": {"city": "Paris"}, "name": "get_weather", "id": "VvvODy9mT"}]',
        '[TOOL_CALLS] {"name": "get_weather", "arguments": {"city": "Paris"}}',
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        '[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Paris"}',
        '[TOOL_CALLS]get_weather{"city": "Paris"}',
    ],
)
def test_a_call_in_all_versions(form: Mistral, text: str) -> None:
    assert read(form, text) == EVENTS


def test_the_second_call_of_a_list_is_cut() -> None:
    text = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "argu'
    assert read(Mistral(), text) == [*EVENTS, CallBroken(1, ', {"name": "now", "argu')]


def test_a_list_that_goes_on_with_something_else() -> None:
    text = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, "and so on"]'
    assert read(Mistral(), text) == [
        CallStarted(0, "now"),
        CallArguments(0, "{}"),
        CallEnded(0),
        TextPiece(', "and so on"]'),
    ]


def test_templates_take_ids_of_nine_characters() -> None:
    assert len(Mistral11().template_id(call_id("a", 0))) == 9
    assert Mistral11().template_id("VvvODy9mT") == "VvvODy9mT"
