"""Hermes, Qwen 2.5 and 3, and models whose template knows no calls: JSON in `<tool_call>`. Pure.

Sources: https://github.com/NousResearch/Hermes-Function-Calling, and the chat templates of Qwen2.5, Qwen3 and SmolLM3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from moa_client.tools.formats.base import Found, ToolFormat, after_mark, call_object, object_grammar
from moa_client.tools.formats.call_text import read_calls
from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import Tool, ToolCall

TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    openings: ClassVar = (TOOL_CALL,)
    closing: ClassVar = TOOL_CALL_END

    def detect(self, chat_template: str) -> bool:
        return TOOL_CALL in chat_template

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return ("{",)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        found = read_calls(text, len(opening), None, "(?!)")
        return found if found.is_cut else Found(found.calls, after_mark(text, found.end, TOOL_CALL_END))

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CALL}\n{call_object(call, 'arguments')}\n{TOOL_CALL_END}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "arguments", grammar, f"{TOOL_CALL}\n", f"\n{TOOL_CALL_END}")


class SmolLM3(Hermes):
    """Hermes' form, offered as the template's `xml_tools`.

    The template writes neither earlier calls nor marks results (discussions 41 and 44 there): both are written into
    messages as text.
    """

    def detect(self, chat_template: str) -> bool:
        return "xml_tools" in chat_template

    def template_arguments(self, tools: Sequence[Tool]) -> dict[str, Any]:
        return {"xml_tools": [tool.function() for tool in tools]}
