"""The machine: cores that a process runs on, memory that it may still take, elapsed time; and what a doctor finds."""

import gc
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moa_shared.errors import ConfigError

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
MOST = 65_536


def parse_cores(text: str) -> frozenset[int]:
    """The cores of a list of numbers and ranges; none of an empty text."""
    cores: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST:
            raise ValueError("expected cores such as 0 or 0,2-3")
        cores.update(range(first, last + 1))
    return frozenset(cores)


def pin_to_cores(cores: frozenset[int]) -> None:
    """Keeps this process, and the threads that it starts, on these cores; none: wherever it may run now."""
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


MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # version 2; within a container it is its own
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What can be had."""

    nbytes: int  # without swapping
    limit: int | None = None  # of the control group that leaves the least; None: the machine has less free


def free_memory_bytes() -> int:
    """Bytes free, or that can be had without swapping: the machine's, and no more than each limit leaves."""
    return free_memory().nbytes


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> FreeMemory:
    """The memory that can be had; if the machine does not say (not Linux), half of what it has."""
    least = FreeMemory(_available(meminfo) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    for folder in _groups(cgroup, own):
        limit, used = (_numbers(folder / f"memory.{each}").get("") for each in ("max", "current"))
        if limit is None or used is None:
            continue
        stat = _numbers(folder / "memory.stat")  # pages of files are dropped when the system needs room
        left = max(0, limit - max(0, used - stat.get("inactive_file", 0) - stat.get("active_file", 0)))
        if left < least.nbytes:
            least = FreeMemory(left, limit)
    return least


def _groups(cgroup: Path, own: Path) -> Iterator[Path]:
    yield cgroup
    with suppress(OSError):
        for line in own.read_text("utf-8").splitlines():
            if line.startswith("0::"):
                folder = cgroup
                for name in Path(line[3:].lstrip("/")).parts:
                    folder /= name
                    yield folder


def _available(meminfo: Path) -> int | None:
    found = _numbers(meminfo).get("MemAvailable:")
    return None if found is None else 1024 * found


def _numbers(file: Path) -> dict[str, int]:
    """The numbers of a file of the kernel's, by the word before each; "": one that stands alone; "max" is none."""
    try:
        lines = [line.removesuffix(" kB").split() for line in file.read_text("ascii").splitlines()]
    except OSError:
        return {}
    return {" ".join(words[:-1]): int(words[-1]) for words in lines if words and words[-1].isdigit()}


@contextmanager
def collector_paused() -> Iterator[None]:
    """No searches meanwhile, in any thread: they take a quarter of the time to read a large vocabulary."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def ms_since(began: float) -> float:
    """Milliseconds since a moment of `time.perf_counter`."""
    return 1e3 * (time.perf_counter() - began)


State = Literal["ok", "warn", "fail", "skip"]
NAME_WIDTH = 11  # of the longest name of a step


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of a step."""

    name: str  # of the step
    state: State
    message: str  # what was found
    hint: str = ""  # what to do about it
    exit_code: int = 0  # of the program, if it failed


def check_line(check: Check) -> str:
    """A line for a person, and what to do below it."""
    line = f"  {check.state:4}  {check.name:{NAME_WIDTH}}  {check.message}\n"
    return line + (f"{'':{NAME_WIDTH + 10}}{check.hint}\n" if check.hint else "")


def check_fields(check: Check) -> dict[str, str | None]:
    return {"name": check.name, "state": check.state, "message": check.message, "hint": check.hint or None}


def exit_code(checks: Sequence[Check]) -> int:
    return next((each.exit_code for each in checks if each.state == "fail"), 0)


def si_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
