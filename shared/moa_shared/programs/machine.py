"""The machine: memory that a process may still take, what another one does; elapsed time; and what a doctor finds."""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # version 2; within a container it is its own
OWN_GROUPS = Path("/proc/self/cgroup")


class FreeMemory(NamedTuple):
    """What can be had."""

    nbytes: int  # without swapping
    limit: int | None = None  # of the control group that leaves the least; None: the machine has less free


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> FreeMemory:
    """The memory that can be had; if the machine does not say (not Linux), half of what it has."""
    available = 1024 * _numbers(meminfo).get("MemAvailable:", 0)
    least = FreeMemory(available or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
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
    """The folders of the control group of this process, and of those that it is in."""
    lines = own.read_text("utf-8").splitlines() if own.is_file() else []
    path = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    return (cgroup.joinpath(*Path(path).parts[:depth]) for depth in range(len(Path(path).parts) + 1))


def _numbers(file: Path) -> dict[str, int]:
    """The numbers of a file of the kernel's, by the word before each; "": one that stands alone; "max" is none."""
    try:
        lines = [line.removesuffix(" kB").split() for line in file.read_text("ascii").splitlines()]
    except OSError:
        return {}
    return {" ".join(words[:-1]): int(words[-1]) for words in lines if words and words[-1].isdigit()}


class Life(NamedTuple):
    """What a process does."""

    is_idle: bool  # none of its threads computes or waits to, or reads a disk
    seconds: float  # of processor time that they have had


def life_of(process: int) -> Life | None:
    """What a process of this number does now; None: there is none, or the system does not say (not Linux)."""
    try:
        files = [thread / "stat" for thread in Path(f"/proc/{process}/task").iterdir()]
        threads = [file.read_text("ascii", "replace").rpartition(")")[2].split() for file in files]
    except OSError:
        return None
    ticks = sum(int(thread[11]) + int(thread[12]) for thread in threads)
    return Life(all(thread[0] not in "RD" for thread in threads), ticks / os.sysconf("SC_CLK_TCK"))


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
    power = next((power for power in range(3) if count < 1000 ** (power + 1)), 3)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"
