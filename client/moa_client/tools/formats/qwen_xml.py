"""Qwen3-Coder, Qwen3.5 and Nemotron 3: a tag for the function and one for each argument, in `<tool_call>`. Pure.

Texts are written as they are, all else as JSON, so that arguments are read by the tool's schema.
Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from moa_client.tools.formats.argument_types import ANY, escaped, json_of, resolved, types_of
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.enforceable import check_keywords, choices_of, refusal
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.calls import Call, Calls
from moa_client.tools.reading.json_scanner import Mismatch, Scan, scan
from moa_client.tools.reading.steps import Steps, expect, read_text, read_until, skip_space
from moa_client.tools.tool import Tool, ToolCall

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
VALUE_ENDS = (f"\n{PARAMETER_END}", PARAMETER_END)
MOST_NAME = 256  # characters of a parameter's name
TEXT = frozenset({"string"})
_DEFINITIONS = ("$defs", "definitions")
_KNOWN = {"properties", "required", "additionalProperties", *_DEFINITIONS}


class QwenXml(ToolFormat):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

    openings: ClassVar = (OPENING,)
    likely_openings: ClassVar = (FUNCTION,)  # models leave out the tag around it
    closing: ClassVar = CLOSING
    after_text: ClassVar = "\n\n"

    def detect(self, chat_template: str) -> bool:
        return OPENING in chat_template and FUNCTION in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        if opening == OPENING:
            if (yield from skip_space()) != FUNCTION[0]:
                raise Mismatch
            yield from expect(FUNCTION[1:])
        call = calls.begin()
        call.set_name((yield from read_until(">", MOST_NAME)).strip())
        yield from _read_parameters(call, calls.tools.get(call.name))
        if (yield from skip_space()) != CLOSING[0]:
            raise Mismatch
        yield from expect(CLOSING[1:])

    def render_call(self, call: ToolCall) -> str:
        lines = [f"{OPENING}\n{FUNCTION}{call.name}>"]
        for key, value in call.values.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f"{PARAMETER}{key}>\n{written}\n{PARAMETER_END}")
        return "\n".join([*lines, f"{FUNCTION_END}\n{CLOSING}"])

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        check_keywords(tool.name, tool.parameters, _KNOWN)
        required = tool.parameters.get("required", [])
        terms = [grammar.markup(f"{OPENING}\n{FUNCTION}{tool.name}>\n")]
        for key, schema in tool.properties.items():
            term = grammar.rule(_parameter_grammar(tool, key, schema, grammar))
            terms.append(term if key in required else f"{term}?")
        return " ".join([*terms, grammar.markup(f"{FUNCTION_END}\n{CLOSING}")])


def _read_parameters(call: Call, tool: Tool | None) -> Steps[None]:
    """Reads the arguments and the end of the function."""
    separator = "{"
    while True:
        if (yield from skip_space()) != "<":
            raise Mismatch
        if (yield) == "/":
            break
        yield from expect(PARAMETER[2:])
        key = (yield from read_until(">", MOST_NAME)).strip()
        call.write(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        yield from _read_value(call, types_of(tool.properties.get(key), tool.parameters) if tool else ANY)
    yield from expect(FUNCTION_END[2:])
    call.write("{}" if separator == "{" else "}")
    call.end()


def _read_value(call: Call, types: frozenset[str]) -> Steps[None]:
    """Reads a value and its end. A text is passed on as it comes, all else once it is whole."""
    first = (yield).removeprefix("\n")
    if types == TEXT:
        call.write('"')
        yield from read_text(VALUE_ENDS, lambda char: call.write(escaped(char)), first)
        call.write('"')
        return
    value: list[str] = []
    end = yield from read_text(VALUE_ENDS, value.append, first)
    while _is_open("".join(value)):  # the mark is in a text of the value
        value.append(end)
        end = yield from read_text(VALUE_ENDS, value.append)
    call.write(json_of("".join(value), types))


def _is_open(value: str) -> bool:
    """Whether this is the beginning of an object or a list."""
    return value.lstrip()[:1] in ("{", "[") and scan(value) is Scan.MORE


def _parameter_grammar(tool: Tool, key: str, schema: Any, grammar: Grammar) -> str:
    head, end = grammar.markup(f"{PARAMETER}{key}>\n"), f"\n{PARAMETER_END}\n"
    place, types = f"{tool.name}.{key}", types_of(schema, tool.parameters)
    if "string" not in types:
        definitions = {name: tool.parameters[name] for name in _DEFINITIONS if name in tool.parameters}
        return f"{head} {grammar.json({**schema, **definitions}, f'schema of {place}')} {grammar.markup(end)}"
    if types != TEXT:
        raise refusal("allows a text or something else", place)
    schema = resolved(schema, tool.parameters)
    choices = choices_of(place, schema, TEXT)
    check_keywords(place, schema, set() if choices is None else {"const", "enum"})
    if choices is None:
        return f'{head} {grammar.text_until(PARAMETER_END)} "\\n"'
    return f"{head} {grammar.choice([grammar.markup(choice + end) for choice in choices])}"
