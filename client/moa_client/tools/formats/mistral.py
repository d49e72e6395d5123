"""Mistral: `[TOOL_CALLS]`, then a list of objects, or from version 11 of its tokenizer on a name and an object. Pure.

Source: https://docs.mistral.ai (function calling), mistral-common's instruct tokenizers, and the chat templates of
Mistral Small 3.1 and Devstral.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from moa_client.tools.formats.base import (
    Found,
    ToolFormat,
    after_mark,
    arguments_grammar,
    call_object,
    object_grammar,
)
from moa_client.tools.formats.call_text import CutError, arguments_of, json_value, read_calls, skip
from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import MOST_NAME, Tool, ToolCall, mistral_id

TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(rf"\s*([\w-]{{1,{MOST_NAME}}})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{{|\Z)", re.ASCII)


class Mistral(ToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`. Reads the newer form as well."""

    openings: ClassVar = (TOOL_CALLS,)
    around: ClassVar = (f"{TOOL_CALLS} [", ", ", "]")
    after_text: ClassVar = ""

    def detect(self, chat_template: str) -> bool:
        return TOOL_CALLS in chat_template

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        at = skip(text, len(opening))
        if text.startswith("[", at):
            found = read_calls(text, at + 1, None)
            return found if found.is_cut else Found(found.calls, after_mark(text, found.end, "]"))
        if text.startswith("{", at) or at == len(text):
            return read_calls(text, at, None, "(?!)")
        if (named := _NAMED.match(text, at)) is None:
            raise ValueError("no name")
        try:
            _, end = json_value(text, named.end())
        except CutError:
            return Found(is_cut=True)
        return Found([(named[1], arguments_of(text[named.end() : end]))], end)

    def cut(self, text: str) -> tuple[str, str] | None:
        named = _NAMED.match(text, len(TOOL_CALLS)) if text.startswith(TOOL_CALLS) else None
        if named is None or named.end() == len(text):
            return super().cut(text)
        return named[1], text[named.end() :]

    def render_call(self, call: ToolCall) -> str:
        return call_object(call, "arguments")

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "arguments", grammar)

    def template_id(self, call_id: str) -> str:
        return mistral_id(call_id)


class Mistral11(Mistral):
    """`[TOOL_CALLS]name[ARGS]{...}`, again for each call."""

    around: ClassVar = ("", "", "")

    def detect(self, chat_template: str) -> bool:
        return TOOL_CALLS in chat_template and ARGS in chat_template

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CALLS}{call.name}{ARGS}{call.arguments}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return f"{grammar.markup(f'{TOOL_CALLS}{tool.name}{ARGS}')} {arguments_grammar(tool, grammar)}"
