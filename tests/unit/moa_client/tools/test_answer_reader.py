from __future__ import annotations

from moa_client.tools.answer_reader import AnswerReader
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, Piece, TextPiece
from moa_client.tools.thinking import THINKINGS, ReasoningPiece, ThinkingReader

from tests.support.tool_calls import TOOLS


def read(reader: AnswerReader, text: str) -> list[ReasoningPiece | Piece]:
    return [*reader.push(text), *reader.finish()]


def test_reasoning_then_a_call() -> None:
    thinking = ThinkingReader(THINKINGS[-1], is_open=True)
    text = 'Now <tool_call>?\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert read(AnswerReader(thinking, Hermes().reader(TOOLS)), text) == [
        ReasoningPiece("Now <tool_call>?"),
        CallStarted(0, "now"),
        CallArguments(0, "{}"),
        CallEnded(0),
    ]


def test_the_channels_of_gpt_oss() -> None:
    thinking = ThinkingReader(THINKINGS[0], is_open=False)
    text = (
        "<|channel|>analysis<|message|>Need to use function.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.now <|constrain|>json<|message|>{}<|call|>"
    )
    assert read(AnswerReader(thinking, Harmony().reader(TOOLS)), text) == [
        ReasoningPiece("Need to use function."),
        CallStarted(0, "now"),
        CallArguments(0, "{}"),
        CallEnded(0),
    ]


def test_without_reasoning() -> None:
    assert read(AnswerReader(None, Hermes().reader(TOOLS)), "<think>") == [TextPiece("<think>")]
