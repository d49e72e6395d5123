"""Tools that a model may call, its calls, what came of them, and which JSON schemas can be used. Pure.

Names and sizes are checked here, once: whatever takes a `Tool` can rely on them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from string import ascii_letters, digits
from typing import Any, Protocol

from moa_shared.errors import ConfigError
from moa_shared.plain_text import parse_json

MOST_TOOLS = 128  # as OpenAI has it
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
        if self.parameters.get("type", "object") != "object":
            raise ConfigError(
                f"The parameters of the tool {self.name} are of type {self.parameters['type']!r}, expected 'object'.",
                hint="Arguments have names: describe them as properties of an object.",
            )
        if is_deeper(self.parameters, MOST_DEPTH):
            words = f"The schema of {self.name} is nested more than {MOST_DEPTH} deep."
            raise ConfigError(words, hint="Flatten it.")
        check_schema(self.name, self.parameters)

    @property
    def schema_bytes(self) -> int:
        return len(json.dumps(self.parameters, ensure_ascii=False).encode())

    @property
    def properties(self) -> Mapping[str, Any]:
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        return properties

    def function(self) -> dict[str, Any]:
        """Its name, description and parameters, as models are told of them."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model made; its arguments are an object, as JSON text."""

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
        values: dict[str, Any] = parse_json(self.arguments)
        return values


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told of a call, with its id and the name of its tool."""

    call_id: str
    name: str
    content: str


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call, and what the model is told of it; `is_error`: the tool has failed, or was not run."""

    call: ToolCall
    content: str
    is_error: bool = False

    @property
    def result(self) -> ToolResult:
        return ToolResult(self.call.id, self.call.name, self.content)


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that an answer may call, if any.

    `is_forced`: it must call one. `is_parallel`: it may make several calls.
    """

    tools: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_parallel: bool = True


NO_TOOLS = ToolOffer()


def offer_of(
    tools: Sequence[Tool], *, is_forced: bool = False, name: str | None = None, is_parallel: bool = True
) -> ToolOffer:
    """What is offered of these tools; ConfigError: one must be called that is not there.

    `is_forced`: one must be called; `name`: this one; None: any.
    """
    if name is None:
        if is_forced and not tools:
            raise ConfigError("A call is required, but no tool is offered.", hint="Offer one, or require none.")
        return ToolOffer(tuple(tools), is_forced, is_parallel)
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise ConfigError(
            f"A call of {name[:80]!r} is required, which is not among the tools.",
            hint=f"Offered: {', '.join(tool.name for tool in tools) or 'none'}.",
        )
    return ToolOffer(chosen, is_forced=True, is_parallel=False)  # naming one tool asks for one call


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_tools(tools: Sequence[Tool]) -> None:
    if len(tools) > MOST_TOOLS:
        raise ConfigError(f"{len(tools)} tools are offered, at most {MOST_TOOLS} are allowed.", hint=_FEWER)
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Two tools have the name {name}.", hint="Rename one of them.")
    if (size := sum(tool.schema_bytes for tool in tools)) > MOST_SCHEMAS:
        has = f"The parameters of all tools have {size:,} bytes"
        raise ConfigError(f"{has}, at most {MOST_SCHEMAS:,} are allowed.", hint=_FEWER)


_CHARACTERS = digits + ascii_letters


def call_id(answer: str, index: int) -> str:
    """The id of a call in OpenAI's form; the same answer, resumed or repeated, gives its calls the same ids.

    `answer`: what tells the answer from all others, such as its own id, or its conversation and seed. `index`: of the
    call in the answer.
    """
    return "call_" + _characters(f"{answer}/{index}", 24)


def mistral_id(id: str) -> str:
    """The id under which Mistral's templates take a call with this id; one that they take is left as it is."""
    return id if len(id) == 9 and id.isascii() and id.isalnum() else _characters(id, 9)


def _characters(text: str, length: int) -> str:
    number = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest())
    return "".join(_CHARACTERS[number // len(_CHARACTERS) ** place % len(_CHARACTERS)] for place in range(length))


class ToolBox(Protocol):
    @property
    def tools(self) -> Sequence[Tool]: ...

    @property
    def remarks(self) -> Sequence[str]:
        """What a user should know of them, one sentence each, such as which could not be had."""
        ...

    def server_of(self, tool: str, server: str = "") -> str:
        """The name of the server that has a tool; empty: none has. `server`: whose it has to be; empty: anyone's."""
        ...

    async def run(self, call: ToolCall, server: str = "") -> AnsweredCall:
        """Runs a call; whatever goes wrong is its answer. Cancelling this cancels the call."""
        ...


MOST_DEPTH = 64  # of brackets in brackets
HINT = "Correct the tool's JSON schema."


def check_schema(place: str, schema: Any) -> None:
    """Checks that the keywords of a schema, whose `place` errors name, have values of their kinds."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ConfigError(f"The schema of {place} is not a JSON object.", hint=HINT)
    kinds = schema.get("type", [])
    _expect(place, "type", "a name or a list of names", _is_names([kinds] if isinstance(kinds, str) else kinds))
    _expect(place, "required", "a list of names", _is_names(schema.get("required", [])))
    _expect(place, "enum", "a list", isinstance(schema.get("enum", []), list))
    for key in ("properties", "$defs", "definitions"):
        inner = schema.get(key, {})
        _expect(place, key, "a JSON object", isinstance(inner, Mapping))
        for name, each in inner.items():
            check_schema(f"{place}.{name}", each)
    for key in ("anyOf", "oneOf"):
        alternatives = schema.get(key, [True])
        _expect(place, key, "a list of schemas", isinstance(alternatives, list) and bool(alternatives))
        for each in alternatives:
            check_schema(place, each)
    check_schema(f"{place}[]", schema.get("items", True))


def _expect(place: str, key: str, expected: str, is_right: bool) -> None:
    if not is_right:
        raise ConfigError(f"In the schema of {place}, {key} is not {expected}.", hint=HINT)


def _is_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def is_deeper(value: Any, most: int) -> bool:
    if not isinstance(value, Mapping | list):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return most == 0 or any(is_deeper(each, most - 1) for each in inner)


ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema allows, as a part of the whole; all of them, where it does not say."""
    return _types(schema, root, set()) or ANY


def _types(schema: Any, root: Mapping[str, Any], seen: set[int]) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return ANY
    if id(schema) in seen:  # schemas may refer to each other in circles
        return frozenset()
    seen.add(id(schema))
    if isinstance(reference := schema.get("$ref"), str):
        found: Any = root if reference.startswith("#/") else None
        for key in reference.split("/")[1:]:
            found = found.get(key) if isinstance(found, Mapping) else None
        return _types(found, root, seen)
    if "type" in schema:
        kinds = schema["type"]
        return (frozenset([kinds] if isinstance(kinds, str) else kinds) & ANY) or ANY
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        return frozenset().union(*(_types(each, root, seen) for each in alternatives))
    if "const" in schema or "enum" in schema:
        return frozenset(map(type_of, [schema["const"]] if "const" in schema else schema["enum"]))
    return ANY


_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def type_of(value: Any) -> str:
    return _NAMES.get(type(value), "object")
