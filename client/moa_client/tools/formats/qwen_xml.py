"""Qwen3-Coder, Qwen3.5 and Nemotron 3: a tag for the function and one for each argument, in `<tool_call>`. Pure.

Texts are written as they are, all else as JSON, so that arguments are read by the tool's schema.
Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from moa_client.tools.formats.base import Found, ToolFormat, after_mark
from moa_client.tools.formats.json_calls import CutError, json_value, skip
from moa_client.tools.grammars import Grammar
from moa_client.tools.schemas import ANY, check_keywords, choices_of, refusal, resolved, type_of, types_of
from moa_client.tools.tool import Tool, ToolCall, is_name

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TEXT = frozenset({"string"})
_PARAMETER = re.compile(rf"\s*{PARAMETER}([^>]{{1,256}})>\n?")
_VALUE_END = re.compile(rf"\s*{PARAMETER_END}")
_WHOLE_NUMBER = re.compile(r"\s*-?(?:0|[1-9][0-9]*)\s*")  # of any length: Python reads no more than 4,300 digits
_PYTHONS = {"True": "true", "False": "false", "None": "null"}  # templates write values as Python does
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

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return (FUNCTION,) if opening == OPENING else tuple(f"{name}>" for name in tools)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        name, members, end = _read(text, opening, tools)
        if end < 0:
            return Found(is_cut=True)
        return Found([(name, f"{{{', '.join(members)}}}")], after_mark(text, skip(text, end, FUNCTION_END), CLOSING))

    def cut(self, text: str) -> tuple[str, str] | None:
        name, members, _ = _read(text, OPENING if text.startswith(OPENING) else FUNCTION, {})
        return (name, "{" + ", ".join(members)) if name else None

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


def _read(text: str, opening: str, tools: Mapping[str, Tool]) -> tuple[str, list[str], int]:
    """The name of a function, its arguments as members of an object, and where they end; -1: the text does before."""
    if opening == OPENING and FUNCTION.startswith(text[len(opening) :].lstrip()):
        return "", [], -1
    at = len(opening) if opening == FUNCTION else skip(text, len(opening), FUNCTION)
    if (named := text.find(">", at)) < 0:
        return "", [], -1
    if not is_name(name := text[at:named].strip()):
        raise ValueError("no name")
    at, tool, members = named + 1, tools.get(name), list[str]()
    while head := _PARAMETER.match(text, at):
        key = head[1].strip()
        types = types_of(tool.properties.get(key), tool.parameters) if tool else ANY
        if (found := _value(text, head.end(), types)) is None:
            return name, members, -1
        written, at = found
        members.append(f"{json.dumps(key, ensure_ascii=False)}: {json_of(written, types)}")
    rest = text[at:].lstrip()
    is_cut = rest != FUNCTION_END and any(mark.startswith(rest) for mark in (PARAMETER, FUNCTION_END))
    return name, members, -1 if is_cut or rest.startswith(PARAMETER) else at


def _value(text: str, at: int, types: frozenset[str]) -> tuple[str, int] | None:
    """A value as it is written, and where its end mark ends; None: it is cut. A mark in a text of JSON is none."""
    if types != TEXT and text[at:].lstrip()[:1] in ("{", "["):
        try:
            _, end = json_value(text, skip(text, at))
            if ended := _VALUE_END.match(text, end):
                return text[at:end], ended.end()
        except CutError:
            return None
        except ValueError:
            pass  # another notation, which is kept as text
    end = text.find(PARAMETER_END, at)
    return None if end < 0 else (text[at:end].removesuffix("\n"), end + len(PARAMETER_END))


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON that stands for an argument that was written as `text`."""
    kind = _kind_of(text)
    if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
        return text.strip()
    if text in _PYTHONS and types & {"boolean", "null"}:
        return _PYTHONS[text]
    return json.dumps(text, ensure_ascii=False)


def _kind_of(text: str) -> str:
    if _WHOLE_NUMBER.fullmatch(text):
        return "integer"
    try:
        value, end = json_value(text, skip(text, 0))
    except ValueError:
        return "string"
    return type_of(value) if skip(text, end) == len(text) else "string"


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
