"""Reads the end of the daemon's log, and what is added to it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from moa_shared.errors import NotFoundError

LOOK_SECONDS = 0.2


def tail(path: Path, lines: int, *, follow: bool) -> Iterator[str]:
    """The last lines of a log, each with its line break.

    Args:
        follow: continue with new lines as they are written, also in a file that takes this one's place.
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
            time.sleep(LOOK_SECONDS)
            if path.exists() and path.stat().st_ino != _inode(file.fileno()):
                file.close()
                file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
    finally:
        file.close()


def _inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino
