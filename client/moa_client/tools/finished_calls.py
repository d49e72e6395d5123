"""Reads the calls out of an answer that has ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from moa_client.tools.answer_reader import AnswerReader
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.ids import call_id
from moa_client.tools.reading.pieces import CallArguments, CallBroken, CallStarted
from moa_client.tools.thinking import Thinking, ThinkingReader
from moa_client.tools.tool import Tool, ToolCall


def finished_calls(
    form: ToolFormat, thinking: Thinking | None, tools: Sequence[Tool], prompt: str, answer: str, identifier: str
) -> tuple[ToolCall, ...]:
    """The calls of an answer; one that is not whole is none.

    Args:
        thinking: how the model marks reasoning, in which nothing is called; None: it marks none.
        prompt: the end of the text before the answer; `answer`: its text, both with special tokens.
        identifier: tells the answer from all others.
    """
    reasoning = None if thinking is None else ThinkingReader(thinking, is_open=thinking.is_open(prompt))
    reader = AnswerReader(reasoning, form.reader(tools))
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for piece in [*reader.push(answer), *reader.finish()]:
        match piece:
            case CallStarted(index, name):
                names[index], arguments[index] = name, ""
            case CallArguments(index, text):
                arguments[index] += text
            case CallBroken(index):
                names.pop(index, None)
    return tuple(ToolCall(call_id(identifier, index), name, arguments[index]) for index, name in names.items())
