"""Mistral: `[TOOL_CALLS]`, then a list of objects, or from version 11 of its tokenizer on a name and an object. Pure.

Source: https://docs.mistral.ai (function calling), mistral-common's instruct tokenizers, and the chat templates of
Mistral Small 3.1 and Devstral.
"""

from __future__ import annotations

from typing import ClassVar

from moa_client.tools.formats.base import ToolFormat, arguments_grammar, call_object, object_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.ids import mistral_id
from moa_client.tools.reading.call_object import read_arguments, read_call_list, read_call_object
from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.steps import Steps, read_until, skip_space
from moa_client.tools.tool import MOST_NAME, Tool, ToolCall

OPENING, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MOST_HEAD = MOST_NAME + 128  # characters of a name and an id


class Mistral(ToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`. Reads the newer form as well."""

    openings: ClassVar = (OPENING,)
    around: ClassVar = (f"{OPENING} [", ", ", "]")
    after_text: ClassVar = ""

    def detect(self, chat_template: str) -> bool:
        return OPENING in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        char = yield from skip_space()
        if char == "[":
            yield from read_call_list(calls)
        elif char == "{":
            yield from read_call_object(calls)
        else:
            yield from _read_named(char, calls)

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
        return OPENING in chat_template and ARGS in chat_template

    def render_call(self, call: ToolCall) -> str:
        return f"{OPENING}{call.name}{ARGS}{call.arguments}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return f"{grammar.markup(f'{OPENING}{tool.name}{ARGS}')} {arguments_grammar(tool, grammar)}"


def _read_named(first: str, calls: Calls) -> Steps[None]:
    """Reads `name[ARGS]{...}`; some versions put `[CALL_ID]id` between."""
    head = first + (yield from read_until("{", MOST_HEAD))
    name = head.strip().removesuffix(ARGS).split(CALL_ID)[0]
    call = calls.begin()
    call.set_name(name)
    yield from read_arguments(call, "{")
    call.end()
