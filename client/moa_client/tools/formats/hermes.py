"""Hermes, Qwen 2.5 and 3, and models whose template knows no calls: JSON in `<tool_call>`. Pure.

Source: https://github.com/NousResearch/Hermes-Function-Calling, and the chat templates of Qwen2.5 and Qwen3.
"""

from __future__ import annotations

from typing import ClassVar

from moa_client.tools.formats.base import ToolFormat, call_object, object_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.call_object import read_call_object
from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.steps import Steps, expect, skip_space
from moa_client.tools.tool import Tool, ToolCall

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    openings: ClassVar = (OPENING,)
    closing: ClassVar = CLOSING

    def detect(self, chat_template: str) -> bool:
        return OPENING in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        if (yield from skip_space()) != "{":
            raise Mismatch
        yield from read_call_object(calls)
        if (yield from skip_space()) != CLOSING[0]:
            raise Mismatch
        yield from expect(CLOSING[1:])

    def render_call(self, call: ToolCall) -> str:
        return f"{OPENING}\n{call_object(call, 'arguments')}\n{CLOSING}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "arguments", grammar, f"{OPENING}\n", f"\n{CLOSING}")
