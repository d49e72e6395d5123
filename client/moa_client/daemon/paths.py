"""Where the daemon's socket, lock and log are; the lock makes it the only one.

The lock is held by the process as long as it lives, and let go by any death. Invariant: its holder owns the socket; a
socket without a holder is stale.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from moa_shared.errors import ConfigError, DiskFullError

MOST_PATH_BYTES = 100  # of a socket: 108 with the final zero on Linux, 104 on macOS
ROOM_BYTES = 1 << 12  # for the lock, and the first lines of the log


@dataclass(frozen=True, slots=True)
class DaemonPaths:
    """The daemon's files, all in one folder that only its user can enter."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "daemon.sock"

    @property
    def lock(self) -> Path:
        """Held as long as it runs; says which process that is."""
        return self.folder / "daemon.lock"

    @property
    def log(self) -> Path:
        return self.folder / "daemon.log"


def find_paths(folder: Path | None) -> DaemonPaths:
    """The daemon's files.

    `folder`: None: in the user's runtime folder, or where the system has none, in the one for a program's state.
    """
    if folder is None:
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        folder = Path(runtime) / "moa" if runtime else _state_folder()
    return DaemonPaths(folder.expanduser().absolute())


def make_folder(paths: DaemonPaths) -> None:
    folder = paths.folder
    if len(os.fsencode(paths.socket)) > MOST_PATH_BYTES:
        raise ConfigError(
            f"{paths.socket} is too long for the path of a socket.", hint="Name a shorter folder with --daemon-dir."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made_by, found = folder.lstat().st_uid, folder.stat()  # a symbolic link leads where who made it likes
    except OSError as error:
        raise ConfigError(
            f"The daemon's folder {folder} cannot be made: {error.strerror or error}.",
            hint="Name another with --daemon-dir.",
        ) from error
    if found.st_uid != os.getuid() or made_by not in (0, os.getuid()):
        raise ConfigError(f"The daemon's folder {folder} belongs to another user.", hint="Name another: --daemon-dir.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(ROOM_BYTES))
    except OSError as error:
        from moa_shared.models.sources.cache import is_disk_full

        if is_disk_full(error):
            message = f"The daemon has no room in {folder}: its disk is full."
            raise DiskFullError(message, hint="Free some space, or name another folder with --daemon-dir.") from error
        raise ConfigError(
            f"The daemon's folder {folder} cannot be written: {error.strerror or error}.",
            hint="Name another with --daemon-dir.",
        ) from error


def _state_folder() -> Path:
    import platformdirs

    return platformdirs.user_state_path("moa", appauthor=False) / "run"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock. `since`: when it began, in seconds since 1970."""

    pid: int
    since: float
    version: str


class DaemonLock:
    """The lock, held."""

    def __init__(self, path: Path, holder: Holder) -> None:
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
