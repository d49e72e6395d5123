"""The file in which the user's servers are kept: servers.toml in the user's configuration folder.

State: the file, which only its owner may read. Invariant: it is there whole or not at all, and names no server as in
use that it does not list.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import write_private

from moa_client.servers.entry import ServerEntry, read_entry

HEAD = "# Written by `moa-client servers`.\n"


@dataclass(frozen=True, slots=True)
class ServerBook:
    """All servers, in the order in which they were added.

    Args:
        in_use: names of those to talk to, best liked first.
    """

    entries: tuple[ServerEntry, ...] = ()
    in_use: tuple[str, ...] = ()

    def find(self, name: str) -> ServerEntry:
        """The server of that name."""
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
        """With these in use."""
        return replace(self, in_use=tuple(dict.fromkeys(self.find(name).name for name in names)))

    def remove(self, name: str) -> ServerBook:
        """Without a server."""
        gone = self.find(name)
        return ServerBook(
            tuple(each for each in self.entries if each is not gone),
            tuple(each for each in self.in_use if each != name),
        )

    def text(self) -> str:
        """The file."""
        parts = [HEAD, f"use = {_toml(list(self.in_use))}\n"]
        for entry in self.entries:
            lines = [f"{key} = {_toml(value)}\n" for key, value in entry.fields().items()]
            parts.append(f"\n[servers.{_toml(entry.name)}]\n" + "".join(lines))
        return "".join(parts)


def book_path() -> Path:
    """Where the list is."""
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
    """Replaces the list."""
    path = path or book_path()
    try:
        write_private(path, book.text().encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def _toml(value: str | bool | list[str]) -> str:
    """A value as TOML, whose strings and lists of strings are JSON's."""
    return json.dumps(value, ensure_ascii=False)
