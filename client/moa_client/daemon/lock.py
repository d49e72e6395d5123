"""The lock that makes the daemon the only one: held by the process as long as it lives, and let go by any death.

State: the open file. Invariant: its holder owns the socket; a socket without a holder is stale.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from moa_shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock.

    Args:
        pid: of it.
        since: when it began, in seconds since 1970.
        version: of moa.
    """

    pid: int
    since: float
    version: str


class DaemonLock:
    """The lock, held."""

    def __init__(self, path: Path, holder: Holder) -> None:
        """Takes the lock."""
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held open as long as the lock)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            other = find_holder(path)
            who = f" (process {other.pid})" if other is not None else ""
            raise ConfigError(
                f"A daemon is already running{who}.", hint="`moa-client daemon status` says more about it."
            ) from None
        os.chmod(path, 0o600)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(asdict(holder)))
        self._file.flush()

    def release(self) -> None:
        """Lets go of it."""
        self._file.close()


def find_holder(path: Path) -> Holder | None:
    """The process that holds the lock; None: no daemon runs."""
    try:
        with open(path, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return Holder(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):  # absent, or its holder has only begun to write
        pass
    return None
