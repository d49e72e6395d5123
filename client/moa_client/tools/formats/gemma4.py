"""Gemma 4: calls in a notation of its own between marks. Pure.

Keys have no quotes, and a text is between two marks, without escapes; JSON is read as well, which required calls are.
Source: https://ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4, and the chat template of Gemma 4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from moa_client.tools.formats.base import Found, ToolFormat, arguments_grammar
from moa_client.tools.formats.json_calls import CutError, json_value
from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import Tool, ToolCall, is_name

OPENING, CLOSING = "<|tool_call>", "<tool_call|>"
CALL, QUOTE = "call:", '<|"|>'
_QUOTED = r'<\|"\|>(.*?)(?:<\|"\|>|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z)'
_TOKEN = re.compile(rf'{_QUOTED}|([^\s:,{{}}\[\]"<][^:,{{}}\[\]<]*?)(?=\s*:)', re.DOTALL)
_TEXT_OR_END = re.compile(rf"{_QUOTED}|{re.escape(CLOSING)}", re.DOTALL)


class Gemma4(ToolFormat):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`."""

    openings: ClassVar = (OPENING,)
    closing: ClassVar = CLOSING
    around: ClassVar = ("", "", "")
    after_text: ClassVar = ""

    def detect(self, chat_template: str) -> bool:
        return OPENING in chat_template

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return (CALL,)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        found = (each for each in _TEXT_OR_END.finditer(text, len(opening)) if each[0] == CLOSING)
        closing = next(found, None)
        name, brace, values = (
            text[len(opening) : closing.start() if closing else None].strip()[len(CALL) :].partition("{")
        )
        if closing is None and not brace:
            return Found(is_cut=True)
        if not is_name(name.strip()):
            raise ValueError("no name")
        written = _as_json(brace + values)
        try:
            arguments, end = json_value(written)
        except CutError:
            if closing is None:
                return Found(is_cut=True)
            raise
        if not CLOSING.startswith(written[end:].strip()):
            raise ValueError("more than an object")
        is_json = written == brace + values
        made = written[:end] if is_json else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        return Found([(name.strip(), made)], len(text) if closing is None else closing.end())

    def render_call(self, call: ToolCall) -> str:
        return f"{OPENING}{CALL}{call.name}{_written(call.values)}{CLOSING}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        head = grammar.markup(f"{OPENING}{CALL}{tool.name}")
        return f"{head} {arguments_grammar(tool, grammar)} {grammar.markup(CLOSING)}"


def _as_json(values: str) -> str:
    def written(found: re.Match[str]) -> str:
        text = found[1] if found[2] is None else found[2]
        return found[0] if text is None else json.dumps(text, ensure_ascii=False)

    made = _TOKEN.sub(written, values)
    return made[:-1] if values.count(QUOTE) % 2 else made


def _written(value: Any) -> str:
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case dict():
            return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_written, value)) + "]"
        case _:
            return json.dumps(value)
