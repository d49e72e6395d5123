"""How families of models write calls of tools: how a form is recognised, read, written and enforced. Pure.

Sources: https://github.com/NousResearch/Hermes-Function-Calling; the chat templates of Qwen2.5, Qwen3, SmolLM3,
Llama 3, Mistral Small 3.1, Devstral, Qwen/Qwen3-Coder-30B-A3B-Instruct and Gemma 4; Llama's prompt formats
(llama.com/docs/model-cards-and-prompt-formats); https://docs.mistral.ai (function calling), and mistral-common's
instruct tokenizers; https://ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4;
https://github.com/openai/harmony/blob/main/docs/format.md
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from moa_shared.plain_text import marked_text

from moa_client.tools.grammars import Grammar, Reasoning
from moa_client.tools.tool import (
    ANY,
    MOST_DEPTH,
    MOST_NAME,
    Tool,
    ToolCall,
    is_deeper,
    is_name,
    mistral_id,
    type_of,
    types_of,
)

Calls = tuple[list[tuple[str, str]], int]  # the name and the arguments of each, and where their markup ends
NOTHING, _SPACE = re.compile("(?!)"), re.compile(r"[ \t\n\r]*")
_TOLD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class ToolFormat:
    """The form in which a family of models writes calls.

    Attributes:
        signs: what its chat templates contain.
        openings: marks before calls; what follows may be something else.
        first_openings: the same, only where an answer begins; each is one character.
        follows: what a call may begin with after its opening and white space, a character each; empty: anything.
        closing: the mark that ends a call; empty: the answer's end does.
        head, tail: what comes before and after the arguments of a call; %s: its name.
        is_parallel: an answer may hold several calls.
        around: what an answer of calls begins with, what separates two calls, and what it ends with.
        after_text: what separates text from the calls after it.
    """

    signs: ClassVar[tuple[str, ...]] = ()
    openings: ClassVar[tuple[str, ...]] = ()
    first_openings: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[str] = ""
    closing: ClassVar[str] = ""
    head: ClassVar[str] = ""
    tail: ClassVar[str] = ""
    is_parallel: ClassVar[bool] = True
    around: ClassVar[tuple[str, str, str]] = ("", "\n", "")
    after_text: ClassVar[str] = "\n"

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.openings, *self.first_openings, self.closing, *self.around)

    def ends(self, opening: str) -> re.Pattern[str]:
        """Finds what may end a call that was opened so."""
        return re.compile(re.escape(self.closing)) if self.closing else NOTHING

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        """The calls in a text that begins with their opening; ValueError: it is no call, or not the whole of it."""
        raise NotImplementedError

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        """An answer as the model may write it: text, then calls."""
        before, between, after = self.around
        written = between.join(f"{self.head % call.name}{call.arguments}{self.tail}" for call in calls)
        written = before + written + after if calls else ""
        return f"{text}{self.after_text}{written}" if text and calls else text + written

    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        """The grammar of a call of a tool, with arguments of its schema; ConfigError: that cannot be enforced."""
        arguments = grammar.json({"type": "object", **tool.parameters}, f"schema of {tool.name}")
        return f"{grammar.markup(self.head % tool.name)} {arguments} {grammar.markup(self.tail)}".rstrip()

    def template_id(self, call_id: str) -> str:
        """The id of a call as templates of the family take it."""
        return call_id


NO_CALLS = ToolFormat()


def render_tools(tools: Sequence[Tool]) -> str:
    """How the system prompt tells of tools where the template does not: as Qwen2.5's does, in Hermes' form."""
    lines = [json.dumps({"type": "function", "function": tool.function()}, ensure_ascii=False) for tool in tools]
    return _TOLD.format(tools="\n".join(lines))


def after_mark(text: str, at: int, mark: str) -> int:
    """Where a mark ends that comes next, or as far as it came with the text's end; else the place itself."""
    rest = text[at:].lstrip()
    if rest.startswith(mark):
        return len(text) - len(rest) + len(mark)
    return len(text) if mark.startswith(rest) else at


def skip(text: str, at: int, expected: str = "") -> int:
    """The place after white space and what is expected then."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if not text.startswith(expected, at):
        raise ValueError(f"no {expected} at {at}")
    return at + len(expected)


def _no_json(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    return min(max(float(number), -sys.float_info.max), sys.float_info.max)


_JSON = json.JSONDecoder(parse_constant=_no_json, parse_float=_finite)


def json_value(text: str, at: int = 0) -> tuple[object, int]:
    """A value of JSON after white space, and where it ends."""
    value, end = _JSON.raw_decode(text, skip(text, at))
    if is_deeper(value, MOST_DEPTH):
        raise ValueError("its brackets are nested too deeply")
    return value, end


def named_call(name: object, arguments: object, known: Mapping[str, Tool] | None = None) -> tuple[str, str]:
    """The name and the arguments of a call; these are an object, which models write as a text, too.

    `known`: the names that it may have; None: any.
    """
    if isinstance(arguments, str):
        arguments, _ = json_value(arguments)
    if not isinstance(name, str) or not is_name(name) or (known is not None and name not in known):
        raise ValueError("no name")
    if not isinstance(arguments, dict):
        raise ValueError("no object")
    return name, marked_text(json.dumps(arguments, ensure_ascii=False))  # half a surrogate pair is no text


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


FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TEXT = frozenset({"string"})
_PARAMETER = re.compile(rf"\s*{PARAMETER}([^>]{{1,256}})>\n?")
_VALUE_END = re.compile(rf"\s*{PARAMETER_END}")
_PYTHONS = {"True": "true", "False": "false", "None": "null"}  # templates write values as Python does


class QwenXml(Hermes):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, of Qwen3-Coder and Qwen3.5.

    Texts are written as they are, all else as JSON, so that arguments are read by the tool's schema.
    Hermes' form is read as well, which required calls have.
    """

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


GEMMA_CALL, GEMMA_CALL_END, CALL_PREFIX = "<|tool_call>", "<tool_call|>", "call:"
_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|"(?:[^"\\]|\\.)*"|(?<=[{,])\s*([^\s:,{}\[\]"<][^:,{}\[\]<]*)(?=:)', re.DOTALL)


class Gemma4(ToolFormat):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`: keys have no quotes, texts no escapes.

    JSON is read as well, which required calls are.
    """

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


START, CHANNEL, MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MOST_HEADER = 256  # characters
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_ENDS = re.compile("|".join(map(re.escape, (MESSAGE, END, RETURN, CALL))))


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>`.

    All text of an answer is in messages, so answers are read with this even if no tools are offered. The channel of
    analysis is reasoning, whose marks are longer.
    """

    signs: ClassVar = (CHANNEL, MESSAGE)
    openings: ClassVar = (START, CHANNEL, END, RETURN, CALL)
    closing: ClassVar = CALL
    head: ClassVar = f"{CHANNEL}commentary to=functions.%s <|constrain|>json{MESSAGE}"  # no tail: that ends the text
    is_parallel: ClassVar = False
    around: ClassVar = ("", START, "")

    def ends(self, opening: str) -> re.Pattern[str]:
        return _ENDS if opening in (START, CHANNEL) else re.compile("")  # at once

    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Calls:
        if opening not in (START, CHANNEL):
            return [], len(opening)
        header, mark, message = text[len(opening) :].partition(MESSAGE)
        if len(header) > MOST_HEADER:
            raise ValueError("no header")
        at = len(text) - len(message)
        if not mark or "to=" not in header:
            return [], at
        if (recipient := _RECIPIENT.search(header)) is None:
            raise ValueError("a message to someone else")
        value, end = json_value(text, at)
        return [named_call(recipient[1], value)], after_mark(text, end, CALL)


def forced_grammar(
    form: ToolFormat,
    tools: Sequence[Tool],
    special_tokens: Mapping[str, int],
    *,
    is_parallel: bool = False,
    reasoning: Reasoning | None = None,
    otherwise: Mapping[str, Any] | None = None,
) -> str:
    """The grammar of an answer that calls one of these tools, with arguments of its schema.

    Args:
        tools: at least one: those that are offered.
        is_parallel: several calls are allowed, where the form knows several.
        reasoning: that may come first; None: none.
        otherwise: the schema of an answer without a call; None: it must call.
    """
    grammar = Grammar(special_tokens)
    call = grammar.choice([form.call_grammar(tool, grammar) for tool in tools])
    before, between, after = (grammar.markup(text) for text in form.around)
    calls = grammar.rule(f"{call} ({between} {call})*" if is_parallel and form.is_parallel else call)
    thought = reasoning.before(grammar) if reasoning is not None else ""
    answer = " ".join(filter(None, [before, calls, after]))
    if otherwise is not None:
        answer = grammar.choice([answer, grammar.json(otherwise, "JSON schema")])
    return grammar.lark(" ".join(filter(None, [thought, answer])))
