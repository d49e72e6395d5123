"""How many threads a kernel call uses: one number for the process. Results do not depend on it."""

from __future__ import annotations

import os

MOST = 64
_threads = 1


def available() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Uses `count` threads from now on, at most 64; 0: as many as there are cores for this process."""
    global _threads
    _threads = min(MOST, count or available())


def threads() -> int:
    """Threads of the next call."""
    return _threads
