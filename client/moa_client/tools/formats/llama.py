"""Llama 3.1 to 3.3: a JSON object that is the whole answer, or follows `<|python_tag|>`. Pure.

Source: the prompt formats of Llama 3.1 (llama.com/docs/model-cards-and-prompt-formats) and their chat templates.
"""

from __future__ import annotations

from typing import ClassVar

from moa_client.tools.formats.base import ToolFormat, call_object, object_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.call_object import read_call_object
from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.steps import Steps, skip_space
from moa_client.tools.tool import Tool, ToolCall

PYTHON_TAG = "<|python_tag|>"


class Llama(ToolFormat):
    """`{"name": ..., "parameters": {...}}`; several of them are separated by semicolons."""

    is_parallel: ClassVar = False
    likely_openings: ClassVar = (PYTHON_TAG,)  # before Python, too
    first_openings: ClassVar = ("{",)
    around: ClassVar = ("", "; ", "")
    after_text: ClassVar = PYTHON_TAG

    def detect(self, chat_template: str) -> bool:
        return "<|start_header_id|>" in chat_template and '"parameters"' in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        if opening == PYTHON_TAG and (yield from skip_space()) != "{":
            raise Mismatch
        while True:
            yield from read_call_object(calls)
            if (yield from skip_space()) != ";" or (yield from skip_space()) != "{":
                raise Mismatch

    def render_call(self, call: ToolCall) -> str:
        return call_object(call, "parameters")

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "parameters", grammar)
