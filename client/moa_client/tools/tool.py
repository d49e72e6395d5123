"""Tools that a model may call, its calls, and what came of them. Pure.

Names and sizes are checked here, once: whatever takes a `Tool` can rely on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.text.json_text import parse_json

from moa_client.tools.schema_check import check_schema

MOST_TOOLS = 128  # as OpenAI has it
MOST_DESCRIPTION = 1 << 15  # characters: agents explain a tool on pages
MOST_SCHEMA = 1 << 16  # bytes of one tool's
MOST_SCHEMAS = 3 << 16  # bytes of all together: they fit into one constraint with the markup around them
_FEWER = "Offer fewer tools at a time."
_AS_MADE = "Send calls back as the model made them, and none that was cut."
MOST_NAME = 128  # characters, as Anthropic has it; OpenAI has 64
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{MOST_NAME}}}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Args:
        parameters: the JSON schema of its arguments, which are an object.
        server: of whose tools it is one; empty: the program's that asks.
        listed: its name there.

    Raises:
        ConfigError: a name, a description or a schema that cannot be used.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    server: str = ""
    listed: str = ""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ConfigError(
                f"The tool's name {self.name[:80]!r} cannot be used.",
                hint=f"Use 1 to {MOST_NAME} of the characters a-z, A-Z, 0-9, _ and -.",
            )
        if len(self.description) > MOST_DESCRIPTION:
            raise ConfigError(
                f"The description of the tool {self.name} has {len(self.description):,} characters, "
                f"at most {MOST_DESCRIPTION:,} are allowed.",
                hint="Shorten it.",
            )
        if self.parameters.get("type", "object") != "object":
            raise ConfigError(
                f"The parameters of the tool {self.name} are of type {self.parameters['type']!r}, expected 'object'.",
                hint="Arguments have names: describe them as properties of an object.",
            )
        check_schema(self.name, self.parameters)
        if (size := self.schema_bytes) > MOST_SCHEMA:
            raise ConfigError(
                f"The parameters of the tool {self.name} have {size:,} bytes, at most {MOST_SCHEMA:,} are allowed.",
                hint="Shorten them.",
            )

    @property
    def schema_bytes(self) -> int:
        """The size of its schema as JSON."""
        return len(json.dumps(self.parameters, ensure_ascii=False).encode())

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument, by name."""
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        return properties

    def function(self) -> dict[str, Any]:
        """Its name, description and parameters, as models are told of them."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model made.

    Args:
        arguments: an object, as JSON text.

    Raises:
        ConfigError: a name or arguments that no call can have.
    """

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ConfigError(f"The call {self.id[:80]!r} names no tool: {self.name[:80]!r}.", hint=_AS_MADE)
        try:
            arguments = parse_json(self.arguments)
        except ValueError as error:
            raise ConfigError(
                f"The arguments of the call {self.id[:80]!r} are not JSON: {error}.", hint=_AS_MADE
            ) from None
        if not isinstance(arguments, dict):
            raise ConfigError(f"The arguments of the call {self.id[:80]!r} are not a JSON object.", hint=_AS_MADE)

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name."""
        values: dict[str, Any] = parse_json(self.arguments)
        return values


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call.

    Args:
        call_id: of the call that it answers.
        name: of the tool.
        content: what the model is told.
    """

    call_id: str
    name: str
    content: str


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call, and what came of it.

    Args:
        content: what the model is told.
        is_error: the tool has failed, or was not run.
    """

    call: ToolCall
    content: str
    is_error: bool = False

    @property
    def result(self) -> ToolResult:
        """What came of it, as a message."""
        return ToolResult(self.call.id, self.call.name, self.content)


class ChoiceMode(Enum):
    """Whether a model may, must or must not call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools an answer may call, and whether it has to.

    Args:
        name: of the tool, where the mode is NAMED.
    """

    mode: ChoiceMode = ChoiceMode.AUTO
    name: str = ""

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in (ChoiceMode.REQUIRED, ChoiceMode.NAMED)

    def of(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools that the answer may call.

        Raises:
            ConfigError: it has to call one that is not offered.
        """
        if self.mode is ChoiceMode.NONE:
            return ()
        if self.mode is not ChoiceMode.NAMED:
            if self.mode is ChoiceMode.REQUIRED and not tools:
                raise ConfigError("A call is required, but no tool is offered.", hint="Offer one, or require none.")
            return tuple(tools)
        chosen = tuple(tool for tool in tools if tool.name == self.name)
        if not chosen:
            raise ConfigError(
                f"A call of {self.name[:80]!r} is required, which is not among the tools.",
                hint=f"Offered: {', '.join(tool.name for tool in tools) or 'none'}.",
            )
        return chosen


def is_name(name: str) -> bool:
    """Whether a tool can have this name."""
    return _NAME.fullmatch(name) is not None


def check_tools(tools: Sequence[Tool]) -> None:
    """Checks what is offered together.

    Raises:
        ConfigError: too many tools, two of one name, or too much text.
    """
    if len(tools) > MOST_TOOLS:
        raise ConfigError(f"{len(tools)} tools are offered, at most {MOST_TOOLS} are allowed.", hint=_FEWER)
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Two tools have the name {name}.", hint="Rename one of them.")
    if (size := sum(tool.schema_bytes for tool in tools)) > MOST_SCHEMAS:
        raise ConfigError(
            f"The parameters of all tools have {size:,} bytes, at most {MOST_SCHEMAS:,} are allowed.",
            hint=_FEWER,
        )
