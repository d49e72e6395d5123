"""The file of keys: TOML, one table a key, which only its owner may read, or a group if it is root's.

Invariant: it is there whole or not at all; two commands that change it at the same time both take effect.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import write_private
from moa_shared.programs.secret_files import open_to_others

from moa_server.access.api_key import KeyBook, KeyEntry, check_name, entry_fields
from moa_server.access.caller import CallerLimits, Right

HEAD = "# Written by `moa-server keys`. It holds the hashes of keys, not the keys.\n"
LOCK_SECONDS = 10.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("sessions", "kv_bytes", "tokens_per_minute", "requests_per_minute")


def read_key_file(path: Path) -> KeyBook:
    """All keys of a file.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: others may write it or read it, or it holds what cannot be used.
    """
    try:
        found = path.stat()
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "Make the first key: moa-server keys add NAME"
        raise NotFoundError(f"There is no file of keys {path}.", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The file of keys {path} cannot be read: {why}.", hint="") from None
    if open_to_others(found):
        raise ConfigError(f"Others may read the file of keys {path}.", hint=f"Protect it: chmod 600 {path}")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The file of keys {path} is not TOML: {error}.", hint="Correct that line.") from None
    if not text.strip():  # half-written, more likely than meant
        raise ConfigError(f"The file of keys {path} is empty.", hint="Delete it, or write it again.")
    tables = document.get("keys", {})
    if not isinstance(tables, dict) or document.keys() - {"keys"}:
        raise ConfigError(f"The file of keys {path} must hold tables [keys.NAME].", hint="Correct it.")
    return KeyBook.of(_read_entry(name, table, path) for name, table in tables.items())


@contextmanager
def changing(path: Path) -> Iterator[list[KeyBook]]:
    """The keys of a file, to be replaced: the one element of the list is written when the block ends.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    import filelock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock")
        with filelock.FileLock(lock, timeout=LOCK_SECONDS, mode=0o600):
            if os.geteuid() == 0 and path.exists():  # the file's owner changes it too
                os.chown(lock, path.stat().st_uid, -1, follow_symlinks=False)
            book = [read_key_file(path) if path.exists() else KeyBook()]
            yield book
            write_private(path, text_of(book[0]).encode())
    except filelock.Timeout:
        message = f"Another program has been changing {path} for {LOCK_SECONDS:g} s."
        raise ConfigError(message, hint="Try again.") from None
    except OSError as error:
        raise ConfigError(f"The file of keys {path} cannot be written: {error.strerror or error}.", hint="") from None


def text_of(book: KeyBook) -> str:
    """The file."""
    parts = [HEAD]
    for entry in book.entries.values():
        lines = [f"{name} = {_toml(name, value)}\n" for name, value in entry_fields(entry).items()]
        parts.append(f"\n[keys.{json.dumps(entry.name)}]\n" + "".join(lines))
    return "".join(parts)


def _toml(name: str, value: Any) -> str:
    """A value as TOML, whose strings, numbers and lists are JSON's, but not its dates."""
    return str(value) if name in ("created", "expires") else json.dumps(value)


def _read_entry(name: str, table: object, path: Path) -> KeyEntry:
    try:
        if not isinstance(table, dict):
            raise ValueError("it is not a table")
        check_name(name)
        unknown = table.keys() - {"sha256", "rights", "created", "expires", *_LIMITS}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))} is not known")
        sha256 = table.get("sha256")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise ValueError("sha256 must be 64 hexadecimal digits")
        rights = table.get("rights", list(Right))
        if not isinstance(rights, list):
            raise ValueError("rights must be a list")
        limits = {field: table[field] for field in _LIMITS if field in table}
        for field, value in limits.items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{field} must be a whole number")
        return KeyEntry(
            name,
            sha256,
            frozenset(Right(right) for right in rights),
            CallerLimits(**limits),
            _moment(table, "created"),
            _moment(table, "expires"),
        )
    except ValueError as error:
        raise ConfigError(f"keys.{name} in {path}: {error}.", hint="Correct it, or remove the table.") from None


def _moment(table: dict[str, Any], field: str) -> datetime | None:
    moment = table.get(field)
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise ValueError(f"{field} must be a date and a time, such as 2027-01-31T00:00:00Z")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
