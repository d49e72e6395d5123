"""Examples of the harmony response format's documentation."""

from __future__ import annotations

import pytest
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.reading.pieces import CallBroken, Piece, TextPiece

from tests.support.tool_calls import call, events_of, read

EVENTS: list[Piece] = events_of([call("get_weather", city="San Francisco")])
ARGUMENTS = '{"city": "San Francisco"}'


@pytest.mark.parametrize(
    "text",
    [
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}",
        f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        f"<|channel|>analysis to=functions.get_weather<|message|>{ARGUMENTS}<|end|>",
    ],
)
def test_a_call_wherever_its_recipient_is_named(text: str) -> None:
    assert read(Harmony(), text) == EVENTS


def test_a_preamble_before_a_call() -> None:
    text = (
        "<|channel|>commentary<|message|>**Action plan**: ask.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    )
    assert read(Harmony(), text) == [TextPiece("**Action plan**: ask."), *EVENTS]


def test_the_headers_of_text_are_dropped() -> None:
    assert read(Harmony(), "<|channel|>final<|message|>2 + 2 = 4.<|return|>") == [TextPiece("2 + 2 = 4.")]
    assert read(Harmony(), "<|channel|>final<|mess") == []


def test_a_call_that_is_cut() -> None:
    text = '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": '
    assert read(Harmony(), text)[-1] == CallBroken(0, text)


def test_a_message_to_someone_else_is_text() -> None:
    text = "<|channel|>commentary to=browser.search<|message|>{}"
    assert read(Harmony(), text) == [TextPiece(text)]
