"""A family's form of calls: how it is recognised, read, written and enforced. Pure."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from moa_client.tools.grammars import Grammar
from moa_client.tools.tool import Tool, ToolCall

NOTHING = re.compile("(?!)")
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


@dataclass(frozen=True, slots=True)
class Found:
    """The calls at the beginning of some text.

    Args:
        calls: the name and the arguments, a JSON object, of each.
        end: where their markup ends.
        is_cut: from there on there is a call without its end.
    """

    calls: Sequence[tuple[str, str]] = ()
    end: int = 0
    is_cut: bool = False


class ToolFormat(ABC):
    """The form in which a family of models writes calls.

    Attributes:
        openings: marks that open nothing but calls.
        likely_openings: marks that open calls, and other things too.
        first_openings: the same, only where an answer begins; each is one character.
        closing: the mark that ends a call; empty: the answer's end does.
        is_parallel: an answer may hold several calls.
        around: what an answer of calls begins with, what separates two calls, and what it ends with.
        after_text: what separates text from the calls after it.
    """

    openings: ClassVar[tuple[str, ...]] = ()
    likely_openings: ClassVar[tuple[str, ...]] = ()
    first_openings: ClassVar[tuple[str, ...]] = ()
    closing: ClassVar[str] = ""
    is_parallel: ClassVar[bool] = True
    around: ClassVar[tuple[str, str, str]] = ("", "\n", "")
    after_text: ClassVar[str] = "\n"
    longest_end: ClassVar[int] = 24  # characters: no mark that ends a call has more

    def __init__(self) -> None:
        self.opening_search = re.compile("|".join(map(re.escape, (*self.openings, *self.likely_openings))))
        self._ends = re.compile(re.escape(self.closing)) if self.closing else NOTHING

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.openings, *self.likely_openings, *self.first_openings, self.closing, *self.around)

    @abstractmethod
    def detect(self, chat_template: str) -> bool:
        """Whether a model with this chat template writes calls so."""

    def ends(self, opening: str) -> re.Pattern[str]:
        """Finds what may end a call that was opened so."""
        return self._ends

    def starts(self, opening: str, tools: Mapping[str, Tool]) -> tuple[str, ...]:
        """What a call begins with after its opening and white space; none: anything."""
        return ()

    @abstractmethod
    def parse(self, text: str, opening: str, tools: Mapping[str, Tool]) -> Found:
        """The calls in a text that begins with their opening.

        Raises:
            ValueError: it is no call.
        """

    @abstractmethod
    def render_call(self, call: ToolCall) -> str:
        """A call as the model writes it."""

    @abstractmethod
    def call_grammar(self, tool: Tool, grammar: Grammar) -> str:
        """The grammar of a call of a tool, with arguments of its schema.

        Raises:
            ConfigError: the schema cannot be enforced in this form.
        """

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        """An answer as the model writes it: text, then calls."""
        before, between, after = self.around
        written = before + between.join(map(self.render_call, calls)) + after if calls else ""
        return f"{text}{self.after_text}{written}" if text and calls else text + written

    def render_tools(self, tools: Sequence[Tool]) -> str:
        """How the system prompt tells of tools where the template does not: as Qwen2.5's does, in Hermes' form."""
        lines = [json.dumps({"type": "function", "function": tool.function()}, ensure_ascii=False) for tool in tools]
        return _TOLD.format(tools="\n".join(lines))

    def template_arguments(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """The arguments of a chat template that knows tools, besides the messages."""
        return {"tools": [{"type": "function", "function": tool.function()} for tool in tools]}

    def template_id(self, call_id: str) -> str:
        """The id of a call as templates of the family take it."""
        return call_id


def call_object(call: ToolCall, key: str) -> str:
    return f'{{"name": {json.dumps(call.name)}, "{key}": {call.arguments}}}'


def arguments_grammar(tool: Tool, grammar: Grammar) -> str:
    return grammar.json({"type": "object", **tool.parameters}, f"schema of {tool.name}")


def object_grammar(tool: Tool, key: str, grammar: Grammar, before: str = "", after: str = "") -> str:
    """The grammar of such an object between two texts."""
    head = grammar.markup(f'{before}{{"name": {json.dumps(tool.name)}, "{key}": ')
    return f"{head} {arguments_grammar(tool, grammar)} {grammar.markup('}' + after)}"


def after_mark(text: str, at: int, mark: str) -> int:
    """Where a mark ends that comes next, or as far as it came with the text's end; else the place itself."""
    rest = text[at:].lstrip()
    if rest.startswith(mark):
        return len(text) - len(rest) + len(mark)
    return len(text) if mark.startswith(rest) else at
