"""Calls as JSON objects, and the families that write them: Hermes, Qwen 2.5 and 3, Llama 3, Mistral. Pure.

Sources: https://github.com/NousResearch/Hermes-Function-Calling; the chat templates of Qwen2.5, Qwen3, SmolLM3,
Llama 3, Mistral Small 3.1 and Devstral; Llama's prompt formats (llama.com/docs/model-cards-and-prompt-formats);
https://docs.mistral.ai (function calling), and mistral-common's instruct tokenizers.
"""

import re
from collections.abc import Mapping
from typing import ClassVar

from moa_client.tools.formats.base import Calls, ToolFormat, after_mark, json_value, named_call, skip
from moa_client.tools.tool import MOST_NAME, Tool, mistral_id


def read_calls(text: str, at: int, known: Mapping[str, Tool] | None, between: str = r"\s*,") -> Calls:
    """Calls that follow each other, each an object with its name and its arguments.

    `known`: the names that they may have, with arguments; None: any, since nothing but a call is an object here.
    `between`: what separates two of them, as a pattern.
    """
    calls: list[tuple[str, str]] = []
    end, separator = 0, re.compile(between)
    while True:
        try:
            value, after = json_value(text, at)
            found = value if isinstance(value, dict) else {}
            arguments = found.get("arguments", found.get("parameters", {} if known is None else None))
            calls.append(named_call(found.get("name"), arguments, known))
        except ValueError:
            if not calls:
                raise
            return calls, end
        end = after
        if (separated := separator.match(text, end)) is None:
            return calls, end
        at = separated.end()


ONE = "(?!)"  # between calls where there is only one
TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    signs: ClassVar[tuple[str, ...]] = (TOOL_CALL,)
    openings: ClassVar[tuple[str, ...]] = (TOOL_CALL,)
    follows: ClassVar[str] = "{"
    closing: ClassVar = TOOL_CALL_END
    head: ClassVar = f'{TOOL_CALL}\n{{"name": "%s", "arguments": '
    tail: ClassVar = f"}}\n{TOOL_CALL_END}"

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        calls, end = read_calls(text, len(opening), None, ONE)
        return calls, after_mark(text, end, TOOL_CALL_END)


PYTHON_TAG, OBJECT = "<|python_tag|>", "{"


class Llama(ToolFormat):
    """`{"name": ..., "parameters": {...}}`; several of them are separated by semicolons."""

    signs: ClassVar = ("<|start_header_id|>", '"parameters"')
    openings: ClassVar = (PYTHON_TAG,)  # before Python, too
    first_openings: ClassVar = (OBJECT,)
    follows: ClassVar[str] = '{"'
    head: ClassVar = '{"name": "%s", "parameters": '
    tail: ClassVar = "}"
    is_parallel: ClassVar = False
    around: ClassVar = ("", "; ", "")
    after_text: ClassVar = PYTHON_TAG

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        return read_calls(text, 0 if opening == OBJECT else len(opening), tools, r"\s*;?\s*(?=\{)")


TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(rf"\s*([\w-]{{1,{MOST_NAME}}})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{{)", re.ASCII)


class Mistral(ToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`. Reads the newer form as well."""

    signs: ClassVar[tuple[str, ...]] = (TOOL_CALLS,)
    openings: ClassVar = (TOOL_CALLS,)
    head: ClassVar = '{"name": "%s", "arguments": '
    tail: ClassVar = "}"
    around: ClassVar = (f"{TOOL_CALLS} [", ", ", "]")
    after_text: ClassVar = ""

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        if (named := _NAMED.match(text, len(opening))) is not None:
            value, end = json_value(text, named.end())
            return [named_call(named[1], value)], end
        at = skip(text, len(opening))
        if not text.startswith("[", at):
            return read_calls(text, at, None, ONE)
        calls, end = read_calls(text, at + 1, None)
        return calls, after_mark(text, end, "]")

    def template_id(self, call_id: str) -> str:
        return mistral_id(call_id)


class Mistral11(Mistral):
    """`[TOOL_CALLS]name[ARGS]{...}`, again for each call."""

    signs: ClassVar = (TOOL_CALLS, ARGS)
    head: ClassVar = f"{TOOL_CALLS}%s{ARGS}"
    tail: ClassVar = ""
    around: ClassVar = ("", "", "")
