"""The servers that the user has named, which of them are meant, and how this device proves to them who it is.

State: servers.toml in the configuration folder, and next to it the folder `joined` with a certificate and a key of each
invitation; only their owner may read them. Invariants: the list is there whole or not at all, holds no key, and names
no server as in use that it does not list; a key is never on a command line.
"""

from __future__ import annotations

import json
import re
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.addresses import Invitation
from moa_shared.programs.atomic import write_private
from moa_shared.programs.config import read_toml, read_value

from moa_client.settings import LOCAL_SERVER, ClientSettings, check_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
FILES = ("tls_ca", "tls_cert", "tls_key", "key_file")
KEY_CHARACTERS = 4096
HEAD = "# Written by `moa-client servers`.\n"
_ANOTHER = "Ask the operator for another one: moa-server invite NAME."
_GONE = {"key_keyring": "a key is kept in a file: name it with key_file, and let only its owner read it"}


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server, and where its secrets are; none is in here. To name a file of certificates is to want TLS.

    Args:
        name: the user's; empty: it is not listed.
        address: HOST:PORT.
        tls_ca: certificates in PEM of those who may vouch for it; None: those of this system.
        tls_cert: certificate by which it knows this device, in PEM; `tls_key`: its private key; None: none.
        insecure: conversations may leave this machine without encryption.
        key_file: holds the API key; None: it needs none.
    """

    name: str
    address: str
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if self.tls_ca is not None or self.tls_cert is not None:
            object.__setattr__(self, "tls", True)

    @property
    def key(self) -> str:
        """The API key; empty: it needs none."""
        return read_key_file(self.key_file) if self.key_file is not None else ""

    @property
    def joined_files(self) -> list[Path]:
        """What its invitation brought; files of the user's own are not among them."""
        return [each for each in (self.tls_ca, self.key_file) if each is not None and each.parent == _joined()]

    @property
    def new_key(self) -> str:
        """What the user does for another key, in a sentence; empty: it is not listed."""
        if not self.name:
            return ""
        if self.joined_files:
            join = f"moa-client servers join {self.name} --replace"
            return f"Ask the operator for another invitation (moa-server invite NAME), then: {join}."
        if self.key_file is not None:
            return f"Ask the operator for another key, and write it into {self.key_file}."
        return f"Ask for a key, and add it: moa-client servers add {self.name} {self.address} --key-file FILE ..."


# Of a table of the file; all but the address may be left out.
FIELDS = {each.name: bool if each.type == "bool" else str for each in fields(ServerEntry) if each.name != "name"}


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
        kept = tuple(each for each in self.entries if each is not self.find(name))
        return ServerBook(kept, tuple(each for each in self.in_use if each != name))

    def text(self) -> str:
        text = f"{HEAD}use = {_toml(list(self.in_use))}\n"
        for entry in self.entries:
            given = {name: value for name in FIELDS if (value := getattr(entry, name))}
            lines = [f"{name} = {_toml(value if value is True else str(value))}\n" for name, value in given.items()]
            text += f"\n[servers.{_toml(entry.name)}]\n{''.join(lines)}"
        return text


def _toml(value: str | bool | list[str]) -> str:
    """A value as TOML, whose strings and lists of strings are JSON's."""
    return json.dumps(value, ensure_ascii=False)


def book_path() -> Path:
    import platformdirs

    return platformdirs.user_config_path("moa", appauthor=False) / "servers.toml"


def read_book(path: Path | None = None) -> ServerBook:
    """The list; empty if there is none yet."""
    path = path or book_path()
    document = read_toml(path, "Correct that line, or delete the file.") or {}
    tables, in_use = document.get("servers", {}), document.get("use", [])
    if not isinstance(tables, dict) or not isinstance(in_use, list) or document.keys() - {"servers", "use"}:
        raise ConfigError(
            f"{path} must hold a list `use` and tables [servers.NAME].", hint="Correct it, or delete the file."
        )
    book = ServerBook(
        tuple(_entry(name, table if isinstance(table, dict) else {}, path) for name, table in tables.items())
    )
    return book.use([str(name) for name in in_use if book.listed(str(name)) is not None])


def write_book(book: ServerBook, path: Path | None = None) -> None:
    path = path or book_path()
    try:
        write_private(path, book.text().encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def _entry(name: str, table: Mapping[str, object], path: Path) -> ServerEntry:
    check_name(name)
    given: dict[str, Any] = {}
    for field, value in {"address": None, **table}.items():
        try:
            given[field] = _read_field(field, value)
        except ValueError as error:
            place = f"servers.{name}.{field} in {path}"
            raise ConfigError(f"{place}: {error}.", hint="Correct it, or remove the server.") from None
    return ServerEntry(name, **given)


def _read_field(field: str, value: object) -> object:
    if field not in FIELDS:
        raise ValueError(_GONE.get(field) or f"it is not a setting of a server; known ones: {', '.join(FIELDS)}")
    if value is None:
        raise ValueError("it is missing")
    read = read_value(FIELDS[field], value)
    if field in FILES:
        return Path(read) if read else None
    return check_address(read) if field == "address" else read


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a server.",
            hint="Use at most 40 letters, digits, dots, hyphens and underscores.",
        )


def find_servers(settings: ClientSettings, book: ServerBook) -> tuple[ServerEntry, ...]:
    """The servers that are meant, best liked first; at least one.

    `settings` name them by HOST:PORT or by names from the list, separated by commas, or not: those in use; and say how
    those are protected that are not listed. A listed one keeps its protection, however it is named.
    """

    def unlisted(address: str) -> ServerEntry:
        return ServerEntry("", address, settings.tls, settings.tls_ca, insecure=settings.insecure)

    if not settings.server:
        return tuple(book.find(name) for name in book.in_use) or (unlisted(LOCAL_SERVER),)
    by_address = {entry.address: entry for entry in reversed(book.entries)}
    parts = [part.strip() for part in settings.server.split(",")]
    found = [by_address.get(part) or unlisted(part) if ":" in part else book.find(part) for part in parts]
    return tuple(dict.fromkeys(found))


def at_addresses(settings: ClientSettings, servers: tuple[ServerEntry, ...]) -> ClientSettings:
    """The same settings, which name the servers by their addresses: what is kept about a server is kept by that."""
    return replace(settings, server=",".join(server.address for server in servers))


def read_key_file(path: Path) -> str:
    """A key from a file that only its owner can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"There is no key file {path}.", hint="Add the server again with its key.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The key file {path} cannot be read: {why}.", hint="") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"Others can read the key file {path}.", hint=f"Protect it: chmod 600 {path}")
    return check_key(text, f"The key file {path}")


def check_key(text: str, source: str) -> str:
    """The key in a text. `source`: where the text comes from, for the message."""
    key = text.strip()
    if not key or len(key) > KEY_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{source} does not hold one API key.", hint="It must be one line of ASCII without spaces.")
    return key


def keep_invitation(name: str, invitation: Invitation) -> ServerEntry:
    """Checks an invitation, and writes its certificate and key; the entry that names them."""
    key = check_key(invitation.key, "The invitation")
    try:
        check_address(invitation.address)
    except ValueError as error:
        raise ConfigError(f"The invitation's address is {invitation.address!r}: {error}.", hint=_ANOTHER) from None
    folder, certificate = _joined(), invitation.authority
    ca, key_file = folder / f"{name}.pem" if certificate else None, folder / f"{name}.key"
    try:
        if certificate:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ca is not None:
            write_private(ca, ssl.DER_cert_to_PEM_cert(certificate).encode())
        write_private(key_file, f"{key}\n".encode())
    except (ssl.SSLError, ValueError):
        raise ConfigError("The invitation's certificate cannot be read.", hint=_ANOTHER) from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}.", hint="") from None
    return ServerEntry(name, invitation.address, tls=True, tls_ca=ca, key_file=key_file)


def forget(gone: ServerEntry, now: ServerEntry | None = None) -> None:
    """Deletes what an invitation brought for an entry, and the one in its place (None: there is none) does not need."""
    for path in gone.joined_files:
        if now is None or path not in now.joined_files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ConfigError(f"{path} cannot be deleted: {error.strerror or error}.", hint="") from None


def _joined() -> Path:
    return book_path().parent / "joined"
