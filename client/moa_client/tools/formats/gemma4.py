"""Gemma 4: calls in a notation of its own between marks. Pure.

Keys have no quotes, and a text is between two marks, without escapes.
Source: https://ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4, and the chat template of Gemma 4.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from moa_client.tools.formats.argument_types import escaped
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.gemma4_grammar import QUOTE, value_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.calls import Call, Calls
from moa_client.tools.reading.json_scanner import MOST_DEPTH, Mismatch
from moa_client.tools.reading.steps import Steps, expect, read_json, read_text, read_until, skip_space
from moa_client.tools.tool import Tool, ToolCall

OPENING, CLOSING = "<|tool_call>", "<tool_call|>"
CALL = "call:"
MOST_NAME = 256  # characters of a key


class Gemma4(ToolFormat):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`."""

    openings: ClassVar = (OPENING,)
    closing: ClassVar = CLOSING
    around: ClassVar = ("", "", "")
    after_text: ClassVar = ""

    def detect(self, chat_template: str) -> bool:
        return OPENING in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        yield from expect(CALL)
        call = calls.begin()
        call.set_name((yield from read_until("{", MOST_NAME)).strip())
        yield from _read_object(call, 1)
        call.end()
        if (yield from skip_space()) != CLOSING[0]:
            raise Mismatch
        yield from expect(CLOSING[1:])

    def render_call(self, call: ToolCall) -> str:
        return f"{OPENING}{CALL}{call.name}{_written(call.values)}{CLOSING}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        head = grammar.markup(f"{OPENING}{CALL}{tool.name}")
        return f"{head} {value_grammar(tool.name, tool.parameters, grammar)} {grammar.markup(CLOSING)}"


def _read_object(call: Call, depth: int) -> Steps[None]:
    """Reads an object after its brace, and writes it as JSON."""
    call.write("{")
    char = yield from skip_space()
    while char != "}":
        key = yield from _read_key(char)
        call.write(json.dumps(key, ensure_ascii=False) + ": ")
        after = yield from _read_value((yield from skip_space()), call, depth)
        char = yield from _read_separator(after, "}", call)
    call.write("}")


def _read_list(call: Call, depth: int) -> Steps[None]:
    call.write("[")
    char = yield from skip_space()
    while char != "]":
        after = yield from _read_value(char, call, depth)
        char = yield from _read_separator(after, "]", call)
    call.write("]")


def _read_separator(first: str | None, end: str, call: Call) -> Steps[str]:
    """Reads what is between two values; the first character after it, or the end."""
    char = yield from skip_space(first)
    if char == ",":
        call.write(", ")
        char = yield from skip_space()
        if char == end:
            raise Mismatch
    elif char != end:
        raise Mismatch
    return char


def _read_key(first: str) -> Steps[str]:
    if first in ':,{}[]"':
        raise Mismatch
    text = first + (yield from read_until(":", MOST_NAME))
    return text.strip().removeprefix(QUOTE).removesuffix(QUOTE)


def _read_value(first: str, call: Call, depth: int) -> Steps[str | None]:
    """Reads a value; the character after it, if that had to be read."""
    if depth == MOST_DEPTH:
        raise Mismatch
    if first == "{":
        yield from _read_object(call, depth + 1)
    elif first == "[":
        yield from _read_list(call, depth + 1)
    elif first == QUOTE[0]:
        yield from expect(QUOTE[1:])
        call.write('"')
        yield from read_text((QUOTE,), lambda char: call.write(escaped(char)))
        call.write('"')
    else:
        return (yield from read_json(first, call.write))
    return None


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
