"""Gemma 4: calls in a notation of its own between marks. Pure.

Keys have no quotes, and a text is between two marks, without escapes.
Source: https://ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4, and the chat template of Gemma 4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from moa_client.tools.formats.base import Found, ToolFormat
from moa_client.tools.formats.json_calls import CutError, json_value
from moa_client.tools.grammars import Grammar
from moa_client.tools.schemas import ANY, check_keywords, choices_of, refusal, types_of
from moa_client.tools.tool import Tool, ToolCall, is_name

OPENING, CLOSING = "<|tool_call>", "<tool_call|>"
CALL, QUOTE = "call:", '<|"|>'
_QUOTED = r'<\|"\|>(.*?)(?:<\|"\|>|\Z)'
_TOKEN = re.compile(rf'{_QUOTED}|([^\s:,{{}}\[\]"<][^:,{{}}\[\]<]*?)(?=\s*:)', re.DOTALL)
_TEXT_OR_END = re.compile(rf"{_QUOTED}|{re.escape(CLOSING)}", re.DOTALL)
_KNOWN = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items"},
    "string": {"enum", "const"},
    "integer": {"enum", "const"},
    "number": {"enum", "const"},
    "boolean": {"enum", "const"},
    "null": {"enum", "const"},
}
_PLAIN = {
    "integer": r"/-?(0|[1-9][0-9]{0,17})/",
    "number": r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}


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
        made = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        return Found([(name.strip(), made)], len(text) if closing is None else closing.end())

    def cut(self, text: str) -> tuple[str, str] | None:
        name, brace, values = text[len(OPENING) :].strip()[len(CALL) :].partition("{")
        return (name.strip(), _as_json(brace + values)) if brace and is_name(name.strip()) else None

    def render_call(self, call: ToolCall) -> str:
        return f"{OPENING}{CALL}{call.name}{_written(call.values)}{CLOSING}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        head = grammar.markup(f"{OPENING}{CALL}{tool.name}")
        return f"{head} {value_grammar(tool.name, tool.parameters, grammar)} {grammar.markup(CLOSING)}"


def _as_json(values: str) -> str:
    made = _TOKEN.sub(lambda each: json.dumps(each[1] if each[2] is None else each[2], ensure_ascii=False), values)
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


def value_grammar(place: str, schema: Mapping[str, Any] | bool, grammar: Grammar) -> str:
    """A term for a value of a schema; `place`: of the schema, for errors."""
    if isinstance(schema, bool):
        schema = {}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            check_keywords(place, schema, {key})
            return grammar.choice([value_grammar(place, each, grammar) for each in schema[key]])
    kinds = types_of(schema, {})
    check_keywords(place, schema, set().union(*(_KNOWN[kind] for kind in kinds)))
    if (values := choices_of(place, schema, kinds)) is not None:
        return grammar.choice([_constant(value, grammar) for value in values])
    if kinds == ANY:
        raise refusal("allows any value", place)
    return grammar.choice([_of_type(kind, place, schema, grammar) for kind in sorted(kinds)])


def _of_type(kind: str, place: str, schema: Mapping[str, Any], grammar: Grammar) -> str:
    if kind == "object":
        return grammar.rule(_object(place, schema, grammar))
    if kind == "array":
        item = value_grammar(f"{place}[]", schema.get("items", {}), grammar)
        return grammar.rule(f'"[" ({item} ("," {item})*)? "]"')
    if kind == "string":
        return grammar.rule(f"{grammar.markup(QUOTE)} {grammar.text_until(QUOTE)}")
    return grammar.rule(_PLAIN[kind])


def _object(place: str, schema: Mapping[str, Any], grammar: Grammar) -> str:
    """An object with its properties in the schema's order, of which those that are not required may be left out."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", [])
    first = rest = '"}"'  # what may follow before any property was written, and after one
    for key, each in reversed(list(properties.items())):
        value = value_grammar(f"{place}.{key}", each, grammar)
        written = f"{grammar.markup(key + ':')} {value} {rest}"
        if key in required:
            first, rest = grammar.rule(written), grammar.rule(f'"," {written}')
        else:
            first, rest = grammar.rule(f"{written} | {first}"), grammar.rule(f'"," {written} | {rest}')
    return f'"{{" {first}'


def _constant(value: Any, grammar: Grammar) -> str:
    if isinstance(value, str):
        return grammar.markup(f"{QUOTE}{value}{QUOTE}")
    return grammar.markup(json.dumps(value))
