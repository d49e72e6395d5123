"""The user's servers, which of them are meant, and the file that keeps them: servers.toml in the configuration folder.

State: the file, which only its owner may read. Invariant: it is there whole or not at all, and names no server as in
use that it does not list.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import write_private
from moa_shared.programs.values import read_value

from moa_client.settings import LOCAL_SERVER, ClientSettings, check_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


FILES = ("tls_ca", "tls_cert", "tls_key", "key_file")


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server, and where its secrets are; none is in here.

    Args:
        name: the user's; empty: it is not listed.
        address: HOST:PORT.
        tls_ca: certificates in PEM of those who may vouch for it; None: those of this system.
        tls_cert: certificate by which it knows this device, in PEM; `tls_key`: its private key; None: none.
        insecure: conversations may leave this machine without encryption.
        key_file: holds the API key; `key_keyring`: the system's keyring does.
    """

    name: str
    address: str
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    key_file: Path | None = None
    key_keyring: bool = False

    @property
    def has_key(self) -> bool:
        return self.key_keyring or self.key_file is not None

    @property
    def key_words(self) -> str:
        if self.key_keyring:
            return "keyring"
        return str(self.key_file) if self.key_file is not None else "none"

    def fields(self) -> dict[str, str | bool]:
        given = {name: getattr(self, name) for name in FIELDS}
        return {name: value if value is True else str(value) for name, value in given.items() if value}


# Of a table of the file; all but the address may be left out.
FIELDS = {each.name: bool if each.type == "bool" else str for each in fields(ServerEntry) if each.name != "name"}


def read_entry(name: str, table: Mapping[str, object], path: Path) -> ServerEntry:
    """An entry from its table. `path`: of the file, for the message."""
    check_name(name)
    fields: dict[str, Any] = {}
    for field, value in table.items():
        try:
            fields[field] = _read_field(field, value)
        except ValueError as error:
            raise _unusable(f"servers.{name}.{field}", path, str(error)) from None
    if "address" not in fields:
        raise _unusable(f"servers.{name}.address", path, "it is missing")
    fields |= {each: Path(fields[each]) if fields.get(each) else None for each in FILES}
    return make_entry(name=name, **fields)


def make_entry(**fields: Any) -> ServerEntry:
    """An entry; to name a file of certificates is to want TLS."""
    entry = ServerEntry(**fields)
    return replace(entry, tls=entry.tls or entry.tls_ca is not None or entry.tls_cert is not None)


def _read_field(field: str, value: object) -> object:
    if field not in FIELDS:
        raise ValueError(f"it is not a setting of a server; known ones: {', '.join(FIELDS)}")
    read = read_value(FIELDS[field], value)
    return check_address(read) if field == "address" else read


def _unusable(place: str, path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{place} in {path}: {problem}.", hint="Correct it, or remove the server.")


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a server.",
            hint="Use at most 40 letters, digits, dots, hyphens and underscores.",
        )


HEAD = "# Written by `moa-client servers`.\n"


@dataclass(frozen=True, slots=True)
class ServerBook:
    """All servers, in the order in which they were added. `in_use`: names of those to talk to, best liked first."""

    entries: tuple[ServerEntry, ...] = ()
    in_use: tuple[str, ...] = ()

    def find(self, name: str) -> ServerEntry:
        if (entry := self.listed(name)) is not None:
            return entry
        known = ", ".join(entry.name for entry in self.entries)
        listed = f"There are: {known}." if known else "Add it first: moa-client servers add NAME HOST:PORT."
        hint = f"{listed} An address has a port: {name}:50051."
        raise NotFoundError(f"There is no server named {name}.", hint=hint)

    def listed(self, name: str) -> ServerEntry | None:
        """The server of that name; None: there is none."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def add(self, entry: ServerEntry) -> ServerBook:
        """With another server, or a new entry of the same name; the first one is in use."""
        kept = tuple(each for each in self.entries if each.name != entry.name)
        return ServerBook((*kept, entry), self.in_use or (entry.name,))

    def use(self, names: Sequence[str]) -> ServerBook:
        return replace(self, in_use=tuple(dict.fromkeys(self.find(name).name for name in names)))

    def remove(self, name: str) -> ServerBook:
        gone = self.find(name)
        return ServerBook(
            tuple(each for each in self.entries if each is not gone),
            tuple(each for each in self.in_use if each != name),
        )

    def text(self) -> str:
        parts = [HEAD, f"use = {_toml(list(self.in_use))}\n"]
        for entry in self.entries:
            lines = [f"{key} = {_toml(value)}\n" for key, value in entry.fields().items()]
            parts.append(f"\n[servers.{_toml(entry.name)}]\n" + "".join(lines))
        return "".join(parts)


def book_path() -> Path:
    import platformdirs

    return platformdirs.user_config_path("moa", appauthor=False) / "servers.toml"


def read_book(path: Path | None = None) -> ServerBook:
    """The list; empty if there is none yet."""
    path = path or book_path()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return ServerBook()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.", hint="Correct that line, or delete the file.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint="") from None
    tables, in_use = document.get("servers", {}), document.get("use", [])
    if not isinstance(tables, dict) or not isinstance(in_use, list) or document.keys() - {"servers", "use"}:
        raise ConfigError(
            f"{path} must hold a list `use` and tables [servers.NAME].", hint="Correct it, or delete the file."
        )
    entries = tuple(read_entry(name, table if isinstance(table, dict) else {}, path) for name, table in tables.items())
    book = ServerBook(entries)
    known = {entry.name for entry in entries}
    return book.use([str(name) for name in in_use if name in known])


def write_book(book: ServerBook, path: Path | None = None) -> None:
    path = path or book_path()
    try:
        write_private(path, book.text().encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def _toml(value: str | bool | list[str]) -> str:
    """A value as TOML, whose strings and lists of strings are JSON's."""
    return json.dumps(value, ensure_ascii=False)


def find_servers(settings: ClientSettings, book: ServerBook) -> tuple[ServerEntry, ...]:
    """The servers that are meant, best liked first; at least one.

    Args:
        settings: name them by HOST:PORT or by names from the list, separated by commas, or not: those in use; and say
            how those are protected that are not listed.
    """
    if not settings.server:
        return tuple(book.find(name) for name in book.in_use) or (_unlisted(LOCAL_SERVER, settings),)
    found = dict.fromkeys(_find(part.strip(), settings, book) for part in settings.server.split(","))
    return tuple(found)


def at_addresses(settings: ClientSettings, servers: tuple[ServerEntry, ...]) -> ClientSettings:
    """The same settings, which name the servers by their addresses: what is kept about a server is kept by that."""
    return replace(settings, server=",".join(server.address for server in servers))


def _find(part: str, settings: ClientSettings, book: ServerBook) -> ServerEntry:
    """A server by its name or its address; a listed one keeps its protection, however it is named."""
    if ":" not in part:
        return book.find(part)
    return next((entry for entry in book.entries if entry.address == part), _unlisted(part, settings))


def _unlisted(address: str, settings: ClientSettings) -> ServerEntry:
    return make_entry(name="", address=address, tls=settings.tls, tls_ca=settings.tls_ca, insecure=settings.insecure)
