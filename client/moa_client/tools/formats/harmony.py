"""gpt-oss: messages with headers that name a channel, and for a call its recipient. Pure.

All text of an answer is in messages, so answers are read with this even if no tools are offered. The channel of
analysis is reasoning, which `thinking` takes out first.
Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from moa_client.tools.formats.base import ToolFormat, arguments_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.call_object import read_arguments
from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.steps import Steps, read_until, skip_space
from moa_client.tools.tool import Tool, ToolCall

START, CHANNEL, MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MOST_HEADER = 256  # characters
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>`."""

    is_parallel: ClassVar = False
    openings: ClassVar = (START, CHANNEL, END, RETURN, CALL)
    closing: ClassVar = CALL
    around: ClassVar = ("", START, "")

    def detect(self, chat_template: str) -> bool:
        return CHANNEL in chat_template and MESSAGE in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        calls.only_markup = True
        if opening in (END, RETURN, CALL):
            return
        header = yield from read_until(MESSAGE, MOST_HEADER)
        if "to=" not in header:
            return
        if (recipient := _RECIPIENT.search(header)) is None:
            raise Mismatch
        call = calls.begin()
        call.set_name(recipient[1])
        if (yield from skip_space()) != "{":
            raise Mismatch
        yield from read_arguments(call, "{")
        call.end()

    def render_call(self, call: ToolCall) -> str:
        return f"{_header(call.name)}{call.arguments}{CALL}"

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        if not text:
            return super().render(text, calls)
        if not calls:
            return f"{CHANNEL}final{MESSAGE}{text}"
        return f"{CHANNEL}commentary{MESSAGE}{text}{END}{START}{super().render('', calls)}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        # No mark at its end: that is an end of text.
        return f"{grammar.markup(_header(tool.name))} {arguments_grammar(tool, grammar)}"


def _header(name: str) -> str:
    return f"{CHANNEL}commentary to=functions.{name} <|constrain|>json{MESSAGE}"
