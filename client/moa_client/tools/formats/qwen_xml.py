"""Qwen3-Coder, Qwen3.5 and Nemotron 3: a tag for the function and one for each argument, in `<tool_call>`. Pure.

Texts are written as they are, all else as JSON, so that arguments are read by the tool's schema.
Hermes' form is read as well, which required calls have.
Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from moa_client.tools.formats.base import Found, after_mark
from moa_client.tools.formats.json_calls import TOOL_CALL as OPENING
from moa_client.tools.formats.json_calls import TOOL_CALL_END as CLOSING
from moa_client.tools.formats.json_calls import CutError, Hermes, json_value, skip
from moa_client.tools.tool import ANY, Tool, ToolCall, is_name, type_of, types_of

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TEXT = frozenset({"string"})
_PARAMETER = re.compile(rf"\s*{PARAMETER}([^>]{{1,256}})>\n?")
_VALUE_END = re.compile(rf"\s*{PARAMETER_END}")
_WHOLE_NUMBER = re.compile(r"\s*-?(?:0|[1-9][0-9]*)\s*")  # of any length: Python reads no more than 4,300 digits
_PYTHONS = {"True": "true", "False": "false", "None": "null"}  # templates write values as Python does


class QwenXml(Hermes):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

    likely_openings: ClassVar[tuple[str, ...]] = (FUNCTION,)  # models leave out the tag around it
    after_text: ClassVar = "\n\n"

    def detect(self, chat_template: str) -> bool:
        return OPENING in chat_template and FUNCTION in chat_template

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return (FUNCTION, "{") if opening == OPENING else tuple(f"{name}>" for name in tools)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        if opening == OPENING and text[len(opening) :].lstrip().startswith("{"):
            return super().parse(text, opening, tools)
        name, members, end = _read(text, opening, tools)
        if end < 0:
            return Found(is_cut=True)
        return Found([(name, f"{{{', '.join(members)}}}")], after_mark(text, skip(text, end, FUNCTION_END), CLOSING))

    def render_call(self, call: ToolCall) -> str:
        lines = [f"{OPENING}\n{FUNCTION}{call.name}>"]
        for key, value in call.values.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f"{PARAMETER}{key}>\n{written}\n{PARAMETER_END}")
        return "\n".join([*lines, f"{FUNCTION_END}\n{CLOSING}"])


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
