"""A family's form of calls: how it is recognised, read, written and enforced. Pure."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reading.reader import CallMarkup, Reader
from moa_client.tools.tool import Tool, ToolCall


class ToolFormat(CallMarkup):
    """The form in which a family of models writes calls.

    Attributes:
        is_parallel: an answer may hold several calls.
        around: what an answer of calls begins with, what separates two calls, and what it ends with.
        after_text: what separates text from the calls after it.
    """

    is_parallel: ClassVar[bool] = True
    around: ClassVar[tuple[str, str, str]] = ("", "\n", "")
    after_text: ClassVar[str] = "\n"

    @property
    def marks(self) -> tuple[str, ...]:
        """All that marks calls in an answer."""
        return (*self.openings, *self.likely_openings, *self.first_openings, self.closing, *self.around)

    @abstractmethod
    def detect(self, chat_template: str) -> bool:
        """Whether a model with this chat template writes calls so."""

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

    def reader(self, tools: Sequence[Tool]) -> Reader:
        """A reader of one answer, to which these tools were offered."""
        return Reader(self, tools)

    def template_arguments(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """The arguments of a chat template that knows tools, besides the messages."""
        return {"tools": [{"type": "function", "function": tool.function()} for tool in tools]}

    def template_id(self, call_id: str) -> str:
        """The id of a call as templates of the family take it."""
        return call_id


def call_object(call: ToolCall, key: str) -> str:
    """A call as an object with its name and, under this key, its arguments."""
    return f'{{"name": {json.dumps(call.name)}, "{key}": {call.arguments}}}'


def arguments_grammar(tool: Tool, grammar: Grammar) -> str:
    """The grammar of a tool's arguments as JSON."""
    return grammar.json({"type": "object", **tool.parameters}, f"schema of {tool.name}")


def object_grammar(tool: Tool, key: str, grammar: Grammar, before: str = "", after: str = "") -> str:
    """The grammar of such an object between two texts."""
    head = grammar.markup(f'{before}{{"name": {json.dumps(tool.name)}, "{key}": ')
    return f"{head} {arguments_grammar(tool, grammar)} {grammar.markup('}' + after)}"
