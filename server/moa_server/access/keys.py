"""API keys, what of them a server keeps, the file of keys (TOML, one table a key), and the gate that asks for them.

A key is 256 random bits, so its plain SHA-256 keeps it secret: there is nothing to guess that a slow hash would guard.
Invariants: an entry holds no key; the file, which only its owner may read, or a group if it is root's, is there whole
or not at all; two commands that change it at the same time both take effect; a file that vanishes or cannot be used
changes nothing: the keys known so far stay in force until there is a good one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import Any

import structlog
from moa_shared.errors import AuthenticationError, ConfigError, MoaError, NotFoundError
from moa_shared.programs.atomic import open_to_others, write_private

from moa_server.access.limits import Caller, CallerLimits, Right, caller_without_key

DATES = ("created", "expires")  # of TOML: its strings, numbers and lists are JSON's
LIMITS = tuple(each.name for each in fields(CallerLimits))
VARIABLE = "MOA_KEYS"  # holds keys themselves

log = structlog.get_logger()


def new_key() -> str:
    return "moa_" + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key as a server keeps it.

    `name`: the operator's; `sha256`: of the key. `created`, `expires`: with their time zone; None: not known, or never.
    """

    name: str
    sha256: str = field(repr=False)
    rights: frozenset[Right] = frozenset(Right)
    limits: CallerLimits = field(default_factory=CallerLimits)
    created: datetime | None = None
    expires: datetime | None = None

    @property
    def identifier(self) -> str:
        """The first of its hash, for people and logs."""
        return self.sha256[:8]

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

    def caller(self, peer: str) -> Caller:
        return Caller(f"key {self.identifier}", peer, self.name, self.rights, self.limits, is_proven=True)


@dataclass(frozen=True, slots=True)
class KeyBook:
    entries: Mapping[str, KeyEntry] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[KeyEntry]) -> KeyBook:
        return cls({entry.name: entry for entry in entries})

    def find(self, key: str) -> KeyEntry | None:
        digest = hash_of(key)
        return next((each for each in self.entries.values() if compare_digest(digest, each.sha256)), None)

    def with_entry(self, entry: KeyEntry) -> KeyBook:
        if entry.name in self.entries:
            hint = f"Choose another name, or revoke it first: moa-server keys revoke {entry.name}"
            raise ConfigError(f"There is a key named {entry.name} already.", hint=hint)
        return KeyBook({**self.entries, entry.name: entry})

    def without(self, name: str) -> KeyBook:
        if name not in self.entries:
            known = f"There are: {', '.join(self.entries)}." if self.entries else "There are none."
            raise NotFoundError(f"There is no key named {name}.", hint=known)
        return KeyBook({other: entry for other, entry in self.entries.items() if other != name})

    def joined(self, other: KeyBook) -> KeyBook:
        """With the keys of another book, whose names go first."""
        return KeyBook({**self.entries, **other.entries})


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name):
        hint = "Use at most 40 letters, digits, dots, hyphens and underscores."
        raise ConfigError(f"{name!r} cannot be the name of a key.", hint=hint)
    return name


def check_key(key: str, source: str) -> str:
    if not 32 <= len(key) <= 4096 or not key.isascii() or not key.isprintable() or " " in key:
        hint = "It must be 32 random ASCII characters or more, such as moa-server keys add prints."
        raise ConfigError(f"{source} is no API key.", hint=hint)
    return key


def keys_in(text: str, source: str) -> KeyBook:
    """The keys of an environment variable: lines, or parts between commas, of NAME KEY."""
    entries = []
    parts = [words for part in re.split(r"[,\n]", text) if (words := part.split())]
    for number, words in enumerate(parts, 1):
        if len(words) != 2:
            raise ConfigError(f"Entry {number} of {source} is not a name and a key.", hint="Write NAME KEY, NAME KEY.")
        name, key = words
        entries.append(KeyEntry(check_name(name), hash_of(check_key(key, f"The key of {name} in {source}"))))
    return KeyBook.of(entries)


def read_expiry(text: str | None, now: datetime) -> datetime | None:
    """A date (2027-01-31, up to its end) or a number of days from now; None: never."""
    if text is None:
        return None
    try:
        if text.isascii() and text.isdigit() and len(text) < 6:
            until = datetime.fromtimestamp(now.timestamp() + 86_400 * int(text), UTC)
        else:
            until = datetime.strptime(text, "%Y-%m-%d").replace(hour=23, minute=59, second=59, tzinfo=UTC)
        if until > now:
            return until
    except ValueError:
        pass
    raise ConfigError(f"--expires is {text!r}: neither a date to come, as 2027-01-31, nor a number of days.", hint="")


def entry_fields(entry: KeyEntry) -> dict[str, Any]:
    """An entry as values of TOML and JSON; what is not said is left out."""
    dates = {name: moment for name in DATES if (moment := getattr(entry, name)) is not None}
    return {
        "sha256": entry.sha256,
        "rights": [right.value for right in Right if right in entry.rights],
        **{name: value for name, value in asdict(entry.limits).items() if value},
        **{name: moment.astimezone(UTC).isoformat(timespec="seconds") for name, moment in dates.items()},
    }


def read_key_file(path: Path) -> KeyBook:
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
    return parse_keys(text, path)


def parse_keys(text: str, path: Path) -> KeyBook:
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
    """The keys of a file, to be replaced: the one element of the list is written when the block ends."""
    import filelock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock")
        with filelock.FileLock(lock, mode=0o600):  # the kernel's: who holds it is alive, however busy
            if os.geteuid() == 0 and path.exists():  # the file's owner changes it too
                os.chown(lock, path.stat().st_uid, -1, follow_symlinks=False)
            book = [read_key_file(path) if path.exists() else KeyBook()]
            yield book
            write_private(path, text_of(book[0]).encode())
    except OSError as error:
        raise ConfigError(f"The file of keys {path} cannot be written: {error.strerror or error}.", hint="") from None


def text_of(book: KeyBook) -> str:
    parts = ["# Written by `moa-server keys`. It holds the hashes of keys, not the keys.\n"]
    for entry in book.entries.values():
        parts.append(f"\n[keys.{json.dumps(entry.name)}]\n")
        for name, value in entry_fields(entry).items():
            parts.append(f"{name} = {value if name in DATES else json.dumps(value)}\n")
    return "".join(parts)


def _read_entry(name: str, table: object, path: Path) -> KeyEntry:
    try:
        if not isinstance(table, dict):
            raise ValueError("it is not a table")
        check_name(name)
        if unknown := table.keys() - {"sha256", "rights", *DATES, *LIMITS}:
            raise ValueError(f"{', '.join(sorted(unknown))} is not known")
        if not isinstance(sha256 := table.get("sha256"), str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError("sha256 must be 64 hexadecimal digits")
        if not isinstance(rights := table.get("rights", list(Right)), list):
            raise ValueError("rights must be a list")
        limits = {limit: table[limit] for limit in LIMITS if limit in table}
        for limit, value in limits.items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{limit} must be a whole number")
        dates = (_moment(table, each) for each in DATES)
        return KeyEntry(name, sha256, frozenset(map(Right, rights)), CallerLimits(**limits), *dates)
    except ValueError as error:
        raise ConfigError(f"keys.{name} in {path}: {error}.", hint="Correct it, or remove the table.") from None


def _moment(table: dict[str, Any], field: str) -> datetime | None:
    moment = table.get(field)
    if isinstance(moment, datetime):
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment is not None:
        raise ValueError(f"{field} must be a date and a time, such as 2027-01-31T00:00:00Z")
    return None


class Gate:
    """Lets callers in. `path`: of the file of keys; None: there is none; `fixed`: keys that are not in the file."""

    def __init__(
        self,
        path: Path | None = None,
        fixed: KeyBook | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.wants_keys = path is not None or fixed is not None
        self._path = path
        self._fixed = fixed or KeyBook()
        self._now = now
        self._seen = file_stamp(path) if path is not None else None
        self.book = (read_key_file(path) if path is not None else KeyBook()).joined(self._fixed)

    @classmethod
    def of(cls, path: Path | None) -> Gate:
        """The gate of this process: the keys of a file and of the environment."""
        text = os.environ.get(VARIABLE, "")
        return cls(path, keys_in(text, VARIABLE) if text.strip() else None)

    def admit(self, metadata: Iterable[tuple[str, str | bytes]], peer: str, certificate: str = "") -> Caller:
        """Who calls. `certificate`: whose it is that the connection has shown; empty: none."""
        if not self.wants_keys:
            return caller_without_key(peer, certificate)
        scheme, _, key = str(dict(metadata).get("authorization", "")).partition(" ")
        if scheme != "Bearer":
            raise AuthenticationError("The server wants an API key, as `authorization: Bearer KEY`.")
        entry = self.book.find(key.strip())
        if entry is None:
            raise AuthenticationError("The server does not know this API key.")
        if entry.has_expired(self._now()):
            words = f"This API key has expired on {entry.expires:%Y-%m-%d}."
            raise AuthenticationError(words, hint="Ask the operator for another one.")
        return entry.caller(peer)

    def refusal(self, caller: Caller) -> AuthenticationError | None:
        """Why a caller that was let in has lost access; None: it has access."""
        entry = self.book.entries.get(caller.key)
        is_known = entry is not None and entry.caller(caller.peer).owner == caller.owner
        if not caller.key or (entry is not None and is_known and not entry.has_expired(self._now())):
            return None
        words = f"This API key {'has expired' if is_known else 'was revoked'}."
        return AuthenticationError(words, hint="Ask the operator for another one.")

    def refresh(self, *, at_once: bool = False) -> bool:
        """Reads the file again if it has changed, or `at_once`; returns whether its keys are new, and in force now."""
        stamp = file_stamp(self._path) if self._path is not None else None
        if self._path is None or (stamp == self._seen and not at_once):
            return False
        self._seen = stamp
        try:
            book = read_key_file(self._path)
        except MoaError as error:
            log.error("keys not reloaded; those known stay in force", reason=error.message, hint=error.hint)
            return False
        self.book = book.joined(self._fixed)
        log.info("keys reloaded", keys=len(self.book.entries))
        return True


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Differs once a file has changed, also in its rights; None: there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
