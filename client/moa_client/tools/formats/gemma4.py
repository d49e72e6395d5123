"""Gemma 4: calls in a notation of its own between marks. Pure.

Keys have no quotes, and a text is between two marks, without escapes; JSON is read as well, which required calls are.
Source: https://ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4, and the chat template of Gemma 4.
"""

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from moa_client.tools.formats.base import Calls, ToolFormat, json_value, named_call
from moa_client.tools.tool import Tool

GEMMA_CALL, GEMMA_CALL_END, CALL_PREFIX = "<|tool_call>", "<tool_call|>", "call:"
_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|"(?:[^"\\]|\\.)*"|(?<=[{,])\s*([^\s:,{}\[\]"<][^:,{}\[\]<]*)(?=:)', re.DOTALL)


class Gemma4(ToolFormat):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`."""

    signs: ClassVar = (GEMMA_CALL,)
    openings: ClassVar = (GEMMA_CALL,)
    follows: ClassVar[str] = CALL_PREFIX[:1]
    closing: ClassVar = GEMMA_CALL_END
    head: ClassVar = f"{GEMMA_CALL}{CALL_PREFIX}%s"
    tail: ClassVar = GEMMA_CALL_END
    around: ClassVar = ("", "", "")
    after_text: ClassVar = ""

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        called, brace, values = text[len(opening) :].removesuffix(GEMMA_CALL_END).strip().partition("{")
        written = _TOKEN.sub(_as_json, brace + values)
        arguments, end = json_value(written)
        if not called.startswith(CALL_PREFIX) or not GEMMA_CALL_END.startswith(written[end:].strip()):
            raise ValueError("no call, or more than that")
        return [named_call(called.removeprefix(CALL_PREFIX).strip(), arguments)], len(text)


def _as_json(found: re.Match[str]) -> str:
    text = found[1] if found[2] is None else found[2].rstrip()
    return found[0] if text is None else json.dumps(text, ensure_ascii=False)
