"""A family's form of calls: how it is recognised, read, written and enforced. Pure."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

from moa_shared.plain_text import marked_text

from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import MOST_DEPTH, Tool, ToolCall, is_deeper, is_name

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
