"""gpt-oss: messages with headers that name a channel, and for a call its recipient. Pure.

All text of an answer is in messages, so answers are read with this even if no tools are offered. The channel of
analysis is reasoning, which `thinking` takes out first.
Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from moa_client.tools.formats.base import Found, ToolFormat, after_mark, arguments_grammar
from moa_client.tools.formats.json_calls import CutError, arguments_of, json_value, skip
from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import Tool, ToolCall, is_name

START, CHANNEL, MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MOST_HEADER = 256  # characters
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_AT_ONCE = re.compile("")
_ENDS = re.compile("|".join(map(re.escape, (MESSAGE, END, RETURN, CALL))))


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>`."""

    is_parallel: ClassVar = False
    openings: ClassVar = (START, CHANNEL, END, RETURN, CALL)
    closing: ClassVar = CALL
    around: ClassVar = ("", START, "")

    def detect(self, chat_template: str) -> bool:
        return CHANNEL in chat_template and MESSAGE in chat_template

    def ends(self, opening: str) -> re.Pattern[str]:
        return _ENDS if opening in (START, CHANNEL) else _AT_ONCE

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        if opening not in (START, CHANNEL):
            return Found(end=len(opening))
        header, mark, message = text[len(opening) :].partition(MESSAGE)
        if len(header) > MOST_HEADER:
            raise ValueError("no header")
        if not mark or "to=" not in header:
            return Found(end=len(text) - len(message))
        if (recipient := _RECIPIENT.search(header)) is None or not is_name(recipient[1]):
            raise ValueError("a message to someone else")
        at = skip(text, len(text) - len(message))
        try:
            _, end = json_value(text, at)
        except CutError:
            return Found(is_cut=True)
        return Found([(recipient[1], arguments_of(text[at:end]))], after_mark(text, end, CALL))

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
