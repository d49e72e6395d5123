"""How much memory this process may still take, as the machine and its control groups (containers, services) say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # version 2, or version 1 below `memory`; within a container these are its own
OWN_GROUPS = Path("/proc/self/cgroup")
_FILES = (  # limit, use, and what of the use are pages of files, which the system drops when it needs room
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What can be had.

    Args:
        nbytes: without swapping.
        limit: of the control group that leaves the least; None: the machine has less free.
    """

    nbytes: int
    limit: int | None = None


def free_memory_bytes() -> int:
    """Bytes free, or that can be had without swapping: the machine's, and no more than each limit leaves."""
    return free_memory().nbytes


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> FreeMemory:
    """The memory that can be had; if the machine does not say (not Linux), half of what it has."""
    least = FreeMemory(_available(meminfo) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    for folder in _groups(cgroup, own):
        for limit_file, used_file, droppable in _FILES:
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is None or used is None:
                continue
            files = sum(_stat(folder / "memory.stat").get(name, 0) for name in droppable)
            left = max(0, limit - max(0, used - files))
            if left < least.nbytes:
                least = FreeMemory(left, limit)
    return least


def _groups(cgroup: Path, own: Path) -> Iterator[Path]:
    """This process's groups, each within the one before."""
    yield cgroup
    yield cgroup / "memory"
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        root = cgroup if not controllers else cgroup / "memory"
        if not controllers or "memory" in controllers.split(","):
            folder = root
            for name in Path(path.lstrip("/")).parts:
                folder /= name
                yield folder


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text("ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _stat(file: Path) -> dict[str, int]:
    try:
        pairs = (line.split() for line in file.read_text("ascii").splitlines())
        return {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}


def _number(file: Path) -> int | None:
    """The number in one of a group's files; None for no limit, or no such file."""
    try:
        text = file.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
