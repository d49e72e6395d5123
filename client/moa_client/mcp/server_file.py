"""The file that names MCP servers, in the form that other programs use. Pure but for reading it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.plain_text import parse_request
from moa_shared.programs.config import plain_words
from pydantic import BaseModel, ValidationError, model_validator

SHAPE = '{"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}, or "url" in place of "command"'
MOST_BYTES = 1 << 20
HTTP_TYPES = ("", "http", "streamable-http", "streamable_http", "streamableHttp")
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")  # as Claude Code and VS Code write them


class ToolServerEntry(BaseModel, extra="ignore"):  # each program writes keys of its own
    """One server: a program that is started here, in `cwd` and with `env` besides what every one gets, or a `url`."""

    name: str = ""
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: Path = Path()
    url: str = ""
    headers: dict[str, str] = {}
    type: str = ""
    disabled: bool = False
    enabled: bool = True

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


class _File(BaseModel, extra="ignore"):
    mcpServers: dict[str, ToolServerEntry]


def read_server_file(path: Path) -> tuple[ToolServerEntry, ...]:
    """The servers that a file names, but those that it disables."""
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The file of MCP servers {path} cannot be read: {error.strerror}.", hint=f"Write one: {SHAPE}."
        ) from None
    if len(text) > MOST_BYTES:
        raise ConfigError(f"The file of MCP servers {path} has more than {MOST_BYTES:,} bytes.", hint="Shorten it.")
    try:
        return parse_servers(parse_request(text), path.parent)
    except ValueError as error:
        raise ConfigError(
            f"The file of MCP servers {path} cannot be used: {error}.", hint=f"Its form is {SHAPE}."
        ) from None


def parse_servers(value: Any, folder: Path, environment: Mapping[str, str] = os.environ) -> tuple[ToolServerEntry, ...]:
    """The servers that the value of such a file names.

    Args:
        folder: of the file, in which programs run that are given no `cwd`.
        environment: the variables that texts of the file may name.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        entries = _File.model_validate(value).mcpServers
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise ValueError(f"{place}: {plain_words(first['msg'])}") from None
    wanted = {name: entry for name, entry in entries.items() if entry.enabled and not entry.disabled}
    return tuple(_server(name, entry, folder, environment) for name, entry in wanted.items())


def _server(name: str, entry: ToolServerEntry, folder: Path, environment: Mapping[str, str]) -> ToolServerEntry:
    def expand(text: str) -> str:
        return _VARIABLE.sub(value_of, text)

    def value_of(found: re.Match[str]) -> str:
        value = environment.get(found[1], found[2])
        if value is None:
            raise ValueError(f"the server {name!r} needs the variable {found[1]}, which is not set")
        return value

    if bool(entry.command) == bool(entry.url):
        raise ValueError(f"the server {name!r} needs a command or a url, and not both")
    if entry.url and entry.type not in HTTP_TYPES:
        raise ValueError(f"the server {name!r} is of the type {entry.type!r}; an address is of the type 'http'")
    if entry.url and not entry.url.startswith(("http://", "https://")):
        raise ValueError(f"the url of the server {name!r} does not begin with http:// or https://")
    return ToolServerEntry(
        name=name,
        command=expand(entry.command),
        args=list(map(expand, entry.args)),
        env={variable: expand(value) for variable, value in entry.env.items()},
        cwd=folder / Path(expand(str(entry.cwd))).expanduser(),
        url=expand(entry.url),
        headers={header: expand(value) for header, value in entry.headers.items()},
    )
