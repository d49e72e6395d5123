"""Qwen3-Coder, Qwen3.5 and Nemotron 3: a tag for the function and one for each argument, in `<tool_call>`. Pure.

Texts are written as they are, all else as JSON, so that arguments are read by the tool's schema.
Hermes' form is read as well, which required calls have.
Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from moa_client.tools.formats.base import Calls, after_mark, json_value, named_call, skip
from moa_client.tools.formats.json_calls import TOOL_CALL, TOOL_CALL_END, Hermes
from moa_client.tools.tool import ANY, Tool, type_of, types_of

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TEXT = frozenset({"string"})
_PARAMETER = re.compile(rf"\s*{PARAMETER}([^>]{{1,256}})>\n?")
_VALUE_END = re.compile(rf"\s*{PARAMETER_END}")
_PYTHONS = {"True": "true", "False": "false", "None": "null"}  # templates write values as Python does


class QwenXml(Hermes):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

    signs: ClassVar = (TOOL_CALL, FUNCTION)
    openings: ClassVar = (TOOL_CALL, FUNCTION)  # models leave out the tag around it
    follows: ClassVar[str] = ""

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        at = skip(text, len(opening))
        if opening == TOOL_CALL and text.startswith("{", at):
            return super().parse(text, opening, tools)
        if opening == TOOL_CALL:
            at = skip(text, at, FUNCTION)
        named = text.index(">", at)
        name = text[at:named].strip()
        at, tool, members = named + 1, tools.get(name), list[str]()
        while head := _PARAMETER.match(text, at):
            key = head[1].strip()
            types = types_of(tool.properties.get(key), tool.parameters) if tool else ANY
            written, at = _value(text, head.end(), types)
            members.append(f"{json.dumps(key, ensure_ascii=False)}: {json_of(written, types)}")
        call = named_call(name, f"{{{', '.join(members)}}}", tools if opening == FUNCTION else None)
        return [call], after_mark(text, skip(text, at, FUNCTION_END), TOOL_CALL_END)


def _value(text: str, at: int, types: frozenset[str]) -> tuple[str, int]:
    """A value as it is written, and where its end mark ends. A mark in a text of JSON is none."""
    if types != TEXT and text[at:].lstrip()[:1] in ("{", "["):
        try:
            _, end = json_value(text, at)
            if ended := _VALUE_END.match(text, end):
                return text[at:end], ended.end()
        except ValueError:
            pass  # another notation, which is kept as text
    end = text.index(PARAMETER_END, at)
    return text[at:end].removesuffix("\n"), end + len(PARAMETER_END)


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON that stands for an argument that was written as `text`."""
    try:
        value, end = json_value(text)
        kind = type_of(value) if skip(text, end) == len(text) else "string"
    except ValueError:
        kind = "string"
    if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
        return text.strip()
    if text in _PYTHONS and types & {"boolean", "null"}:
        return _PYTHONS[text]
    return json.dumps(text, ensure_ascii=False)
