"""Gemma 3, which has no marks for calls: an object that is the whole answer, or is fenced. Pure.

The templates know no tools; what the model is told is in `system_text`.
Source: https://ai.google.dev/gemma/docs/capabilities/function-calling ("Gemma does not output a tool specific token").
"""

from __future__ import annotations

from typing import ClassVar

from moa_client.tools.formats.base import ToolFormat, call_object, object_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.call_object import read_call_list, read_call_object
from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.python_calls import read_python
from moa_client.tools.reading.steps import Steps, expect, skip_space
from moa_client.tools.tool import Tool, ToolCall

FENCE = "```"
TOOL_CODE, JSON = f"{FENCE}tool_code", f"{FENCE}json"


class Gemma3(ToolFormat):
    """`{"name": ..., "parameters": {...}}`, or a fenced block of it or of Python."""

    is_parallel: ClassVar = False
    likely_openings: ClassVar = (TOOL_CODE, JSON)
    first_openings: ClassVar = ("{",)
    closing: ClassVar = FENCE

    def detect(self, chat_template: str) -> bool:
        return "<start_of_turn>" in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        if opening == "{":
            yield from read_call_object(calls)
            return
        char = yield from skip_space()
        if char == "{":
            yield from read_call_object(calls)
        elif char == "[" and opening == JSON:
            yield from read_call_list(calls)
        elif opening == TOOL_CODE:
            yield from read_python(char, FENCE, calls)
            return
        else:
            raise Mismatch
        if (yield from skip_space()) != FENCE[0]:
            raise Mismatch
        yield from expect(FENCE[1:])

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CODE}\n{call_object(call, 'parameters')}\n{FENCE}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "parameters", grammar)
