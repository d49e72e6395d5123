"""Which cores a process runs on: a list such as 0,2-3, so that two processes on one machine do not fight."""

from __future__ import annotations

import os
import re

from moa_shared.errors import ConfigError

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
MOST = 65_536


def parse_cores(text: str) -> frozenset[int]:
    """The cores of a list of numbers and ranges; none of an empty text.

    Raises:
        ValueError: it is no such list.
    """
    cores: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST:
            raise ValueError("expected cores such as 0 or 0,2-3")
        cores.update(range(first, last + 1))
    return frozenset(cores)


def pin_to_cores(cores: frozenset[int]) -> None:
    """Keeps this process, and the threads that it starts, on these cores; none: wherever it may run now.

    Raises:
        ConfigError: the system cannot, or has none of them for this process.
    """
    if not cores:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("Processes cannot be pinned to cores on this system.", hint="Leave out --cores.")
    allowed = os.sched_getaffinity(0)
    if absent := sorted(cores - allowed):
        raise ConfigError(
            f"This process may not run on core {absent[0]}; it may on {', '.join(map(str, sorted(allowed)))}.",
            hint="Name some of these with --cores, or leave it out.",
        )
    os.sched_setaffinity(0, cores)
