"""Starts, finds and ends the daemon's process, and reads its log."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from moa_shared.errors import DataError, InternalError, MoaError, NotFoundError, UnavailableError

from moa_client.daemon.paths import DaemonPaths, find_holder, make_folder
from moa_client.surface.conversation import request
from moa_client.surface.messages import Fields

START_SECONDS = 15.0  # for the process to listen: a second and a half on a slow machine
ANSWER_SECONDS = 5.0  # of a daemon that is there
END_SECONDS = 10.0  # answers under way are stopped, and the server hears a goodbye
LOOK_SECONDS = 0.02


async def find_daemon(paths: DaemonPaths) -> Fields | None:
    """What the running daemon says of itself; None: none runs."""
    try:
        return await request(paths.socket, {"do": "status"}, ANSWER_SECONDS)
    except TimeoutError:
        raise _silent(paths) from None
    except OSError:
        if find_holder(paths.lock) is not None:  # it has only begun
            return await _wait_for(paths, lambda: find_holder(paths.lock) is not None)
        return None


async def start_daemon(paths: DaemonPaths, options: Sequence[str]) -> Fields:
    """Starts a daemon in the background, and waits until it listens; its status."""
    make_folder(paths)
    process, began = _spawn(paths, options)
    status = await _wait_for(paths, lambda: process.poll() is None)
    if status is not None:
        return status
    if process.poll() is None:
        raise InternalError(f"The daemon has not begun to listen within {START_SECONDS:g} s (process {process.pid}).")
    raise _not_started(paths, began, f"exit code {process.returncode}")


async def restart_daemon(paths: DaemonPaths, options: Sequence[str]) -> Fields:
    """Has the daemon begin again, with the options and the environment that it had; its status.

    `options`: as of `start_daemon`, if none runs.
    """
    before = await find_daemon(paths)
    if before is None:
        return await start_daemon(paths, options)
    began = paths.log.stat().st_size if paths.log.exists() else 0
    try:
        await request(paths.socket, {"do": "restart"}, ANSWER_SECONDS)
    except DataError:  # of an older version, which does not know how
        await stop_daemon(paths)
        return await start_daemon(paths, before["options"])
    deadline = time.monotonic() + END_SECONDS + START_SECONDS
    while time.monotonic() < deadline and _is_alive(before["pid"]):
        with suppress(OSError, TimeoutError):
            status = await request(paths.socket, {"do": "status"}, ANSWER_SECONDS)
            if status["since"] != before["since"]:
                return status
        await asyncio.sleep(LOOK_SECONDS)
    raise _not_started(paths, began, "it has ended" if not _is_alive(before["pid"]) else "it does not end")


def daemon_command(options: Sequence[str]) -> list[str]:
    """Runs the daemon; -P: no module of the folder that it is in is imported."""
    return [sys.executable, "-P", "-m", "moa_client.cli", "daemon", "run", *options]


def _spawn(paths: DaemonPaths, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The daemon's process, which outlives this one, and where in the log its words begin."""
    with open(paths.log, "ab") as log:
        os.chmod(paths.log, 0o600)
        began = log.tell()
        command = daemon_command(options)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return process, began


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


async def stop_daemon(paths: DaemonPaths) -> int | None:
    """Ends the daemon, and waits until it has; its process, or None: none runs."""
    holder = find_holder(paths.lock)
    if holder is None:
        return None
    try:
        await request(paths.socket, {"do": "shutdown"}, ANSWER_SECONDS)
    except (OSError, TimeoutError, MoaError):
        with suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while find_holder(paths.lock) is not None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"The daemon (process {holder.pid}) does not end.", hint=f"End it: kill -9 {holder.pid}"
            )
        await asyncio.sleep(LOOK_SECONDS)
    return holder.pid


async def _wait_for(paths: DaemonPaths, is_alive: Callable[[], bool]) -> Fields | None:
    """The status of a daemon that has only begun; None: it has ended, or does not listen in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and is_alive():
        try:
            return await request(paths.socket, {"do": "status"}, ANSWER_SECONDS)
        except TimeoutError:
            raise _silent(paths) from None
        except OSError:
            await asyncio.sleep(LOOK_SECONDS)
    return None


def _silent(paths: DaemonPaths) -> UnavailableError:
    holder = find_holder(paths.lock)
    who = f" (process {holder.pid})" if holder is not None else ""
    return UnavailableError(f"The daemon{who} does not answer.", hint="End it: moa-client daemon stop")


TAIL_SECONDS = 0.2


def tail(path: Path, lines: int, *, follow: bool) -> Iterator[str]:
    """The last lines of a log, each with its line break.

    `follow`: continue with new lines as they are written, also in a file that takes this one's place.
    """
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 (replaced below)
    except FileNotFoundError:
        raise NotFoundError(f"There is no log at {path}.", hint="No daemon has been started there yet.") from None
    try:
        yield from deque(file, lines)
        while follow:
            if line := file.readline():
                yield line
                continue
            time.sleep(TAIL_SECONDS)
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
    finally:
        file.close()
