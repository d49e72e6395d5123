"""What the reader does whatever the form."""

from __future__ import annotations

from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.formats.llama import Llama
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, TextPiece
from moa_client.tools.reading.reader import Reader

from tests.support.tool_calls import TOOLS, call, read


def test_only_what_may_become_markup_is_held() -> None:
    reader = Reader(Hermes(), TOOLS)
    assert reader.push("1 <") == [TextPiece("1")]
    assert reader.push(" 2") == [TextPiece(" < 2")]
    assert reader.push("\n\n") == []  # a call may follow
    assert reader.push("3 ") == [TextPiece("\n\n3")]
    assert reader.finish() == [TextPiece(" ")]


def test_space_between_calls_is_dropped_and_text_after_them_is_kept() -> None:
    one = Hermes().render_call(call("now"))
    events = read(Hermes(), f"So.\n\n{one}\n \n{one}\n\nDone.")
    assert [event for event in events if isinstance(event, TextPiece)] == [TextPiece("So."), TextPiece("\n\nDone.")]
    assert events[-2] == CallEnded(1)


def test_the_end_of_a_call_is_told_with_its_last_character() -> None:
    reader = Reader(Llama(), TOOLS)
    assert reader.push('{"name": "now", "parameters": {}}') == [
        CallStarted(0, "now"),
        CallArguments(0, "{}"),
        CallEnded(0),
    ]
    assert reader.finish() == []
