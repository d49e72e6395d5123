"""The daemon's process from outside: its files, starting, finding and ending it.

The lock is held by the process as long as it lives, and let go by any death. Invariant: its holder owns the socket; a
socket without a holder is stale.
"""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from moa_shared.errors import ConfigError, DataError, InternalError, MoaError, UnavailableError
from moa_shared.programs.run_loop import looks_at

from moa_client.surface.conversation import request
from moa_client.surface.messages import Fields

MOST_PATH_BYTES = 100  # of a socket: 108 with the final zero on Linux, 104 on macOS
ROOM_BYTES = 1 << 12  # for the lock, and the first lines of the log
START_SECONDS = 15.0  # for the process to listen: a second and a half on a slow machine
ANSWER_SECONDS = 5.0  # of a daemon that is there
END_SECONDS = 10.0  # answers under way are stopped, and the server hears a goodbye


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


def find_paths() -> DaemonPaths:
    """The daemon's files: in the user's runtime folder, or without one in that of a program's state."""
    import platformdirs

    runtime = os.environ.get("XDG_RUNTIME_DIR")
    state = platformdirs.user_state_path("moa", appauthor=False)
    return DaemonPaths(Path(runtime) / "moa" if runtime else state / "run")


def make_folder(paths: DaemonPaths) -> None:
    folder = paths.folder
    if len(os.fsencode(paths.socket)) > MOST_PATH_BYTES:
        raise ConfigError(
            f"{paths.socket} is too long for the path of a socket.", hint="Name a shorter folder in XDG_RUNTIME_DIR."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made_by, found = folder.lstat().st_uid, folder.stat()  # a symbolic link leads where who made it likes
        if found.st_uid != os.getuid() or made_by not in (0, os.getuid()):
            raise ConfigError(
                f"The daemon's folder {folder} belongs to another user.", hint="Name another in XDG_RUNTIME_DIR."
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(ROOM_BYTES))
    except OSError as error:
        raise ConfigError(
            f"The daemon's folder {folder} cannot be used: {error.strerror or error}.",
            hint="Name another in XDG_RUNTIME_DIR.",
        ) from error


def take_lock(path: Path) -> TextIO:
    """Makes this process the only daemon, until the file is closed."""
    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held open as long as the lock)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(
            f"A daemon is already running{_who(path)}.", hint="`moa-client daemon status` says more about it."
        ) from None
    os.chmod(path, 0o600)
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "since": time.time(), "version": version("moa-split")}))
    file.flush()
    return file


def find_holder(path: Path) -> int | None:
    """The process that holds the lock; None: no daemon runs."""
    try:
        with open(path, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(json.loads(file.read())["pid"])
    except (OSError, ValueError, LookupError):  # absent, or its holder has only begun to write
        pass
    return None


async def find_daemon(paths: DaemonPaths) -> Fields | None:
    """What the running daemon says of itself; None: none runs."""
    try:
        return await _status(paths)
    except OSError:
        if (pid := find_holder(paths.lock)) is None:
            return None
    return await _wait_for(paths, pid, lambda: find_holder(paths.lock) is not None)  # it has only begun


async def start_daemon(paths: DaemonPaths, options: Sequence[str]) -> Fields:
    """Starts a daemon in the background, and waits until it listens; its status."""
    process, began = _spawn(paths, options)
    status = await _wait_for(paths, process.pid, lambda: process.poll() is None)
    if status is not None:
        return status
    if process.poll() is None:
        raise InternalError(f"The daemon has not begun to listen within {START_SECONDS:g} s (process {process.pid}).")
    raise _not_started(paths, began, f"exit code {process.returncode}")


async def restart_daemon(paths: DaemonPaths) -> Fields:
    """Has the daemon begin again, with the options and the environment that it had, or begin; its status."""
    before = await find_daemon(paths)
    if before is None:
        return await start_daemon(paths, [])
    began = paths.log.stat().st_size if paths.log.exists() else 0
    try:
        await request(paths.socket, {"do": "restart"}, ANSWER_SECONDS)
    except DataError:  # of an older version, which does not know how
        await stop_daemon(paths)
        return await start_daemon(paths, before["options"])
    pid = before["pid"]
    status = await _wait_for(paths, pid, lambda: _is_alive(pid), END_SECONDS + START_SECONDS, before["since"])
    if status is None:
        raise _not_started(paths, began, "it does not end" if _is_alive(before["pid"]) else "it has ended")
    return status


async def stop_daemon(paths: DaemonPaths) -> int | None:
    """Ends the daemon, and waits until it has; its process, or None: none runs."""
    pid = find_holder(paths.lock)
    if pid is None:
        return None
    try:
        await request(paths.socket, {"do": "shutdown"}, ANSWER_SECONDS)
    except (OSError, MoaError):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    async for _ in looks_at(pid, END_SECONDS):
        if find_holder(paths.lock) is None:
            return pid
    raise UnavailableError(f"The daemon (process {pid}) does not end.", hint=f"End it: kill -9 {pid}")


def daemon_command(options: Sequence[str]) -> list[str]:
    """Runs the daemon; -P: no module of the folder that it is in is imported."""
    return [sys.executable, "-P", "-m", "moa_client.cli", "daemon", "run", *options]


def _spawn(paths: DaemonPaths, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The daemon's process, which outlives this one, and where in the log its words begin."""
    make_folder(paths)
    with open(paths.log, "ab") as log:
        os.chmod(paths.log, 0o600)
        began, command = log.tell(), daemon_command(options)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return process, began


async def _status(paths: DaemonPaths) -> Fields:
    try:
        return await request(paths.socket, {"do": "status"}, ANSWER_SECONDS)
    except TimeoutError:
        said = f"The daemon{_who(paths.lock)} does not answer."
        raise UnavailableError(said, hint="End it: moa-client daemon stop") from None


async def _wait_for(
    paths: DaemonPaths, pid: int, is_alive: Callable[[], bool], seconds: float = START_SECONDS, before: float = 0.0
) -> Fields | None:
    """The status of a daemon that has only begun; None: it has ended, or does not listen in time.

    `before`: when the one began whose place it takes.
    """
    async for _ in looks_at(pid, seconds):
        if not is_alive():
            break
        with suppress(OSError, *([MoaError] if before else [])):  # the one before may be ending
            if (status := await _status(paths))["since"] != before:
                return status
    return None


def _who(lock: Path) -> str:
    pid = find_holder(lock)
    return f" (process {pid})" if pid is not None else ""


def _not_started(paths: DaemonPaths, began: int, otherwise: str) -> UnavailableError:
    with open(paths.log, "rb") as log:
        log.seek(began)
        lines = log.read().decode(errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("Error: ") if lines else otherwise
    return UnavailableError(f"The daemon has not started: {last}", hint=f"Its log is {paths.log}.")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
