"""Calls as JSON objects, and the families that write them: Hermes, Qwen 2.5 and 3, Llama 3, Gemma 3, Mistral. Pure.

Sources: https://github.com/NousResearch/Hermes-Function-Calling; the chat templates of Qwen2.5, Qwen3, SmolLM3,
Llama 3, Mistral Small 3.1 and Devstral; Llama's prompt formats (llama.com/docs/model-cards-and-prompt-formats);
https://ai.google.dev/gemma/docs/capabilities/function-calling ("Gemma does not output a tool specific token");
https://docs.mistral.ai (function calling), and mistral-common's instruct tokenizers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from moa_client.tools.formats.base import (
    NOTHING,
    Found,
    ToolFormat,
    after_mark,
    arguments_grammar,
    call_object,
    object_grammar,
)
from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import MOST_DEPTH, MOST_NAME, Tool, ToolCall, is_deeper, is_name, mistral_id

_SPACE = re.compile(r"[ \t\n\r]*")


class CutError(ValueError):
    """The text ends before its JSON does."""


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_JSON = json.JSONDecoder(parse_constant=_no_json)


def skip(text: str, at: int, expected: str = "") -> int:
    """The place after white space and what is expected then."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if not text.startswith(expected, at):
        raise ValueError(f"no {expected} at {at}")
    return at + len(expected)


def json_value(text: str, at: int = 0) -> tuple[Any, int]:
    try:
        value, end = _JSON.raw_decode(text, at)
    except ValueError:
        if _is_begun(text[at:]):
            raise CutError from None
        raise
    if is_deeper(value, MOST_DEPTH):
        raise ValueError("its brackets are nested too deeply")
    return value, end


def _is_begun(text: str) -> bool:
    from pydantic_core import from_json  # devices without the endpoint never need it

    try:
        from_json(text or "[", allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def read_call(text: str, at: int, known: Container[str] | None) -> tuple[tuple[str, str], int]:
    """A call that is an object with its name and its arguments, and where it ends.

    Args:
        known: the names that it may have, with arguments; None: any, since nothing but a call is an object here.
    """
    found, end = _members(text, at)
    name = json.loads(found.get("name", '""'))
    given = next((found[key] for key in ("arguments", "parameters") if key in found), "" if known is not None else "{}")
    if not isinstance(name, str) or not is_name(name) or (known is not None and name not in known):
        raise ValueError("no name")
    return (name, arguments_of(given)), end


def arguments_of(written: str) -> str:
    """The arguments as an object, which models write as a text, too."""
    value, _ = json_value(written)
    if isinstance(value, str):
        written = value
        value, end = json_value(value.strip())
        if value is None or end < len(written.strip()):
            raise ValueError("no object")
    if not isinstance(value, dict):
        raise ValueError("no object")
    return written


def _members(text: str, at: int) -> tuple[dict[str, str], int]:
    """The JSON of each member of an object, and where that ends."""
    begin, (_, end) = at, json_value(text, at)
    found: dict[str, str] = {}
    at = skip(text, begin, "{")
    while not text.startswith("}", at := skip(text, at)):
        key, at = _JSON.raw_decode(text, at)
        at = skip(text, skip(text, at, ":"))
        _, after = _JSON.raw_decode(text, at)
        found.setdefault(key, text[at:after])
        at = skip(text, after)
        at += text.startswith(",", at)
    return found, end


def read_calls(text: str, at: int, known: Container[str] | None, between: str = r"\s*,") -> Found:
    """Calls that follow each other.

    Args:
        between: what separates two of them, as a pattern.

    Raises:
        ValueError: there is none, nor the beginning of one.
    """
    calls: list[tuple[str, str]] = []
    end, separator = 0, re.compile(between)
    while True:
        try:
            call, end = read_call(text, skip(text, at), known)
        except CutError:
            return Found(calls, end, is_cut=True)
        except ValueError:
            if not calls:
                raise
            return Found(calls, end)
        calls.append(call)
        if (separated := separator.match(text, end)) is None:
            return Found(calls, end)
        at = separated.end()


TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    openings: ClassVar = (TOOL_CALL,)
    closing: ClassVar = TOOL_CALL_END

    def detect(self, chat_template: str) -> bool:
        return TOOL_CALL in chat_template

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return ("{",)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        found = read_calls(text, len(opening), None, "(?!)")
        return found if found.is_cut else Found(found.calls, after_mark(text, found.end, TOOL_CALL_END))

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CALL}\n{call_object(call, 'arguments')}\n{TOOL_CALL_END}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "arguments", grammar, f"{TOOL_CALL}\n", f"\n{TOOL_CALL_END}")


class SmolLM3(Hermes):
    """Hermes' form, offered as the template's `xml_tools`.

    The template writes neither earlier calls nor marks results (discussions 41 and 44 there): both are written into
    messages as text.
    """

    def detect(self, chat_template: str) -> bool:
        return "xml_tools" in chat_template

    def template_arguments(self, tools: Sequence[Tool]) -> dict[str, Any]:
        return {"xml_tools": [tool.function() for tool in tools]}


PYTHON_TAG, OBJECT = "<|python_tag|>", "{"
FENCE = "```"
TOOL_CODE, JSON = f"{FENCE}tool_code", f"{FENCE}json"
_TOLD = """You have access to functions. If you decide to invoke any of the function(s),
you MUST put it in the format of
{{"name": function name, "parameters": dictionary of argument name and its value}}

You SHOULD NOT include any other text in the response if you call a function
{tools}"""


class Llama(ToolFormat):
    """`{"name": ..., "parameters": {...}}`; several of them are separated by semicolons."""

    is_parallel: ClassVar = False
    likely_openings: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)  # before Python, too
    first_openings: ClassVar = (OBJECT,)
    around: ClassVar = ("", "; ", "")
    after_text: ClassVar = PYTHON_TAG

    def detect(self, chat_template: str) -> bool:
        return "<|start_header_id|>" in chat_template and '"parameters"' in chat_template

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return ('"',) if opening == OBJECT else (OBJECT,)

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        return read_calls(text, 0 if opening == OBJECT else len(opening), tools, r"\s*;?\s*(?=\{)")

    def render_call(self, call: ToolCall) -> str:
        return call_object(call, "parameters")

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "parameters", grammar)


class Gemma3(Llama):
    """`{"name": ..., "parameters": {...}}`, or a fenced block of it; the templates know no tools."""

    likely_openings: ClassVar = (TOOL_CODE, JSON)
    closing: ClassVar = FENCE
    around: ClassVar = ("", "\n", "")
    after_text: ClassVar = "\n"

    def detect(self, chat_template: str) -> bool:
        return "<start_of_turn>" in chat_template

    def ends(self, opening: str) -> re.Pattern[str]:
        return NOTHING if opening == OBJECT else super().ends(opening)

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        return ('"',) if opening == OBJECT else (OBJECT, "[")

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        if opening == OBJECT:
            return read_calls(text, 0, tools, "(?!)")
        at = skip(text, len(opening))
        is_list = text.startswith("[", at)
        found = read_calls(text, at + is_list, tools, r"\s*," if is_list else "(?!)")
        if found.is_cut:
            return found
        return Found(found.calls, after_mark(text, skip(text, found.end, "]" if is_list else ""), FENCE))

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CODE}\n{call_object(call, 'parameters')}\n{FENCE}"

    def render_tools(self, tools: Sequence[Tool]) -> str:
        return _TOLD.format(tools=json.dumps([tool.function() for tool in tools], ensure_ascii=False, indent=2))


TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(rf"\s*([\w-]{{1,{MOST_NAME}}})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{{|\Z)", re.ASCII)


class Mistral(ToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`. Reads the newer form as well."""

    openings: ClassVar = (TOOL_CALLS,)
    around: ClassVar = (f"{TOOL_CALLS} [", ", ", "]")
    after_text: ClassVar = ""

    def detect(self, chat_template: str) -> bool:
        return TOOL_CALLS in chat_template

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        at = skip(text, len(opening))
        if text.startswith("[", at):
            found = read_calls(text, at + 1, None)
            return found if found.is_cut else Found(found.calls, after_mark(text, found.end, "]"))
        if text.startswith("{", at) or at == len(text):
            return read_calls(text, at, None, "(?!)")
        if (named := _NAMED.match(text, at)) is None:
            raise ValueError("no name")
        try:
            _, end = json_value(text, named.end())
        except CutError:
            return Found(is_cut=True)
        return Found([(named[1], arguments_of(text[named.end() : end]))], end)

    def render_call(self, call: ToolCall) -> str:
        return call_object(call, "arguments")

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return object_grammar(tool, "arguments", grammar)

    def template_id(self, call_id: str) -> str:
        return mistral_id(call_id)


class Mistral11(Mistral):
    """`[TOOL_CALLS]name[ARGS]{...}`, again for each call."""

    around: ClassVar = ("", "", "")

    def detect(self, chat_template: str) -> bool:
        return TOOL_CALLS in chat_template and ARGS in chat_template

    def render_call(self, call: ToolCall) -> str:
        return f"{TOOL_CALLS}{call.name}{ARGS}{call.arguments}"

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        return f"{grammar.markup(f'{TOOL_CALLS}{tool.name}{ARGS}')} {arguments_grammar(tool, grammar)}"
