"""One server of the user's list. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.programs.values import read_value

from moa_client.settings import check_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


# Of a table of the file; all but the address may be left out.
FIELDS: Mapping[str, type] = {
    "address": str,
    "tls": bool,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
    "insecure": bool,
    "key_file": str,
    "key_keyring": bool,
}
FILES = ("tls_ca", "tls_cert", "tls_key", "key_file")


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server, and where its secrets are; none is in here.

    Args:
        name: the user's; empty: it is not listed.
        address: HOST:PORT.
        tls: encrypt, and check its certificate.
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
        """Where the key is, for people."""
        if self.key_keyring:
            return "keyring"
        return str(self.key_file) if self.key_file is not None else "none"

    def fields(self) -> dict[str, str | bool]:
        """The table of the file."""
        given = {name: getattr(self, name) for name in FIELDS}
        return {name: value if value is True else str(value) for name, value in given.items() if value}


def read_entry(name: str, table: Mapping[str, object], path: Path) -> ServerEntry:
    """An entry from its table.

    Args:
        path: of the file, for the message.
    """
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
    """Raises ConfigError for what cannot be the name of a server."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a server.",
            hint="Use at most 40 letters, digits, dots, hyphens and underscores.",
        )
