"""What this machine gives a server: cores, limits, the clock, as the system's files say it."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")
TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised
TIMEX_BYTES = 512  # more than struct timex takes anywhere


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, or a container on it.

    Args:
        cpu: its name; empty: not known.
        threads: hardware threads that this process may use, `cores`: how many whole cores they are.
        quota: cores that the container may keep busy; None: no limit.
        memory_limit: of the container, in bytes; None: no limit.
        open_files: that this process may have; None: no limit.
        is_root: whether this process is the superuser's.
        now: seconds since 1970.
        clock_is_set: whether something keeps the clock right; None: not known.
    """

    cpu: str
    threads: int
    cores: int
    quota: float | None
    memory_limit: int | None
    open_files: int | None
    is_root: bool
    now: float
    clock_is_set: bool | None


def read_machine(proc: Path = PROC, system: Path = SYS) -> Machine:
    """The machine that this process is on."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cgroup = system / "fs/cgroup"  # version 2; within a container this is its own
    return Machine(
        _cpu_name(proc),
        len(allowed),
        _whole_cores(system, allowed),
        _quota(_line(cgroup / "cpu.max")),
        _number(_line(cgroup / "memory.max")),
        _open_files(),
        hasattr(os, "geteuid") and os.geteuid() == 0,
        time.time(),
        _clock_is_set(),
    )


def _cpu_name(proc: Path) -> str:
    try:
        lines = (proc / "cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _whole_cores(system: Path, allowed: set[int]) -> int:
    """Threads of one core have the same list of siblings."""
    siblings = [_line(system / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list") for number in allowed]
    return len(set(siblings)) if all(siblings) else len(allowed)


def _quota(text: str) -> float | None:
    """Cores from the container's microseconds in each period: "200000 100000", or "max 100000"."""
    allowed, _, period = text.partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() and int(period) else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _line(file: Path) -> str:
    """The first line; empty if there is no such file."""
    try:
        return file.read_text("utf-8", "replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _clock_is_set() -> bool | None:
    """What the kernel says of its clock; it is only read."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR
