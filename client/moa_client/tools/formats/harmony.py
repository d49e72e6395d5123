"""gpt-oss: messages with headers that name a channel, and for a call its recipient. Pure.

All text of an answer is in messages, so answers are read with this even if no tools are offered. The channel of
analysis is reasoning, whose marks are longer.
Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

import re
from collections.abc import Mapping
from typing import ClassVar

from moa_client.tools.formats.base import Calls, ToolFormat, after_mark, json_value, named_call
from moa_client.tools.tool import Tool

START, CHANNEL, MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MOST_HEADER = 256  # characters
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_AT_ONCE = re.compile("")
_ENDS = re.compile("|".join(map(re.escape, (MESSAGE, END, RETURN, CALL))))


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>`."""

    signs: ClassVar = (CHANNEL, MESSAGE)
    openings: ClassVar = (START, CHANNEL, END, RETURN, CALL)
    closing: ClassVar = CALL
    head: ClassVar = f"{CHANNEL}commentary to=functions.%s <|constrain|>json{MESSAGE}"  # no tail: that ends the text
    is_parallel: ClassVar = False
    around: ClassVar = ("", START, "")

    def ends(self, opening: str) -> re.Pattern[str]:
        return _ENDS if opening in (START, CHANNEL) else _AT_ONCE

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        if opening not in (START, CHANNEL):
            return [], len(opening)
        header, mark, message = text[len(opening) :].partition(MESSAGE)
        if len(header) > MOST_HEADER:
            raise ValueError("no header")
        at = len(text) - len(message)
        if not mark or "to=" not in header:
            return [], at
        if (recipient := _RECIPIENT.search(header)) is None:
            raise ValueError("a message to someone else")
        value, end = json_value(text, at)
        return [named_call(recipient[1], value)], after_mark(text, end, CALL)
