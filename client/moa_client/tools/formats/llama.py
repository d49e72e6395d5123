"""Llama 3.1 to 3.3 and Gemma 3, whose calls are an object that is the whole answer, or is marked. Pure.

Sources: the prompt formats of Llama 3.1 (llama.com/docs/model-cards-and-prompt-formats), its chat templates, and
https://ai.google.dev/gemma/docs/capabilities/function-calling ("Gemma does not output a tool specific token").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from moa_client.tools.formats.base import NOTHING, Found, ToolFormat, after_mark, call_object, object_grammar
from moa_client.tools.formats.call_text import read_calls, skip
from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import Tool, ToolCall

PYTHON_TAG, OBJECT = "<|python_tag|>", "{"
FENCE = "```"
TOOL_CODE, JSON = f"{FENCE}tool_code", f"{FENCE}json"
_TOLD = """You have access to functions. If you decide to invoke any of the function(s),
you MUST put it in the format of
{{"name": function name, "parameters": dictionary of argument name and its value}}

You SHOULD NOT include any other text in the response if you call a function
{tools}"""


class Llama(ToolFormat):
    """`{"name": ..., "parameters": {...}}`; several of them are separated by semicolons."""

    is_parallel: ClassVar = False
    likely_openings: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)  # before Python, too
    first_openings: ClassVar = (OBJECT,)
    around: ClassVar = ("", "; ", "")
    after_text: ClassVar = PYTHON_TAG

    def detect(self, chat_template: str) -> bool:
        return "<|start_header_id|>" in chat_template and '"parameters"' in chat_template

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return ('"',) if opening == OBJECT else (OBJECT,)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        return read_calls(text, 0 if opening == OBJECT else len(opening), tools, r"\s*;?\s*(?=\{)")

    def render_call(self, call: ToolCall) -> str:
        return call_object(call, "parameters")

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "parameters", grammar)


class Gemma3(Llama):
    """`{"name": ..., "parameters": {...}}`, or a fenced block of it; the templates know no tools."""

    likely_openings: ClassVar = (TOOL_CODE, JSON)
    closing: ClassVar = FENCE
    around: ClassVar = ("", "\n", "")
    after_text: ClassVar = "\n"

    def detect(self, chat_template: str) -> bool:
        return "<start_of_turn>" in chat_template

    def ends(self, opening: str) -> re.Pattern[str]:
        return NOTHING if opening == OBJECT else super().ends(opening)

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return ('"',) if opening == OBJECT else (OBJECT, "[")

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        if opening == OBJECT:
            return read_calls(text, 0, tools, "(?!)")
        at = skip(text, len(opening))
        is_list = text.startswith("[", at)
        found = read_calls(text, at + is_list, tools, r"\s*," if is_list else "(?!)")
        if found.is_cut:
            return found
        return Found(found.calls, after_mark(text, skip(text, found.end, "]" if is_list else ""), FENCE))

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CODE}\n{call_object(call, 'parameters')}\n{FENCE}"

    def render_tools(self, tools: Sequence[Tool]) -> str:
        return _TOLD.format(tools=json.dumps([tool.function() for tool in tools], ensure_ascii=False, indent=2))
