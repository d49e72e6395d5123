"""The gate: says who makes a call, and keeps out who may not.

State: the keys in force. Invariant: a file that vanishes or cannot be used changes nothing: the keys known so far stay
in force until there is a good one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import structlog
from moa_shared.errors import AuthenticationError, ForbiddenError, MoaError

from moa_server.access.caller import Caller, Right, caller_without_key
from moa_server.access.keys import KeyBook, keys_in, read_key_file

log = structlog.get_logger()

AUTHORIZATION = "authorization"  # of a call's metadata
SCHEME = "Bearer "
VARIABLE = "MOA_KEYS"  # holds keys themselves
_WORDS = {
    Right.CONVERSE: "split inference",
    Right.GENERATE: "answers of the server alone",
    Right.FETCH: "fetching the drafter",
}


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
        self._seen = _stamp(path)
        self._book = (read_key_file(path) if path is not None else KeyBook()).joined(self._fixed)

    @classmethod
    def of(cls, path: Path | None) -> Gate:
        """The gate of this process: the keys of a file and of the environment."""
        text = os.environ.get(VARIABLE, "")
        return cls(path, keys_in(text, VARIABLE) if text.strip() else None)

    @property
    def keys(self) -> int:
        """How many keys are in force."""
        return len(self._book.entries)

    def admit(self, metadata: Iterable[tuple[str, str | bytes]], peer: str, certificate: str = "") -> Caller:
        """Who calls. `certificate`: whose it is that the connection has shown; empty: none."""
        if not self.wants_keys:
            return caller_without_key(peer, certificate)
        values = [value for name, value in metadata if name.lower() == AUTHORIZATION]
        if not values:
            raise AuthenticationError("The server wants an API key.")
        value = values[-1]
        if not isinstance(value, str) or not value.startswith(SCHEME):
            raise AuthenticationError("The server wants an API key, as `authorization: Bearer KEY`.")
        return self._book.require(value.removeprefix(SCHEME).strip(), self._now()).caller(peer)

    def refusal(self, caller: Caller) -> AuthenticationError | None:
        """Why a caller that was let in has lost access; None: it has access."""
        if not caller.key:
            return None
        entry = self._book.entries.get(caller.key)
        if entry is None or entry.caller(caller.peer).owner != caller.owner:
            return AuthenticationError("This API key was revoked.", hint="Ask the operator for another one.")
        if entry.has_expired(self._now()):
            return AuthenticationError("This API key has expired.", hint="Ask the operator for another one.")
        return None

    def refresh(self) -> bool:
        """Reads the file again if it has changed; returns whether it was read."""
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._seen:
            return False
        self._seen = stamp
        return self.reload()

    def reload(self) -> bool:
        """Reads the file again; returns whether its keys are in force now."""
        if self._path is None:
            return False
        try:
            book = read_key_file(self._path)
        except MoaError as error:
            log.error("keys not reloaded; those known stay in force", reason=error.message, hint=error.hint)
            return False
        self._book = book.joined(self._fixed)
        log.info("keys reloaded", keys=self.keys)
        return True


def check_right(caller: Caller, right: Right) -> None:
    if right not in caller.rights:
        raise ForbiddenError(f"The key {caller.key} does not permit {_WORDS[right]}.")


def _stamp(path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
