"""What a figure depends on: machine, versions, commit, the cores that server and client are pinned to, and turns.

Repeated measurements are taken in turn, so that disturbances hit all alike.
"""

import gc
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moa_kernels.library import variant_name
from moa_kernels.variants import VARIANTS
from moa_shared.errors import ConfigError, UnavailableError
from moa_shared.programs.machine import collector_paused

_PACKAGES = ("torch", "transformers", "grpcio", "numpy")
# Paths of a checkout, as git takes them: all but those that change no figure.
_OTHERS = ("bench/results", "bench/moa_bench/report.py", "*/tables.py", "docs", "tests", ".ci", "*.md")
_MEASURED = (".", *(f":!{path}" for path in _OTHERS))


def gather_facts(root: Path | None) -> dict[str, Any]:
    variant = variant_name()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(Path("/proc/cpuinfo")),
        # The instructions that the kernels compute with here: "AVX-512 VNNI".
        "kernels": next((each.instructions for each in VARIANTS if each.name == variant), "no compiled kernels"),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": commit_of(root),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_model(cpuinfo: Path) -> str:
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def commit_of(root: Path | None) -> str | None:
    """Short name of the newest commit that changes what is measured, with "+" where that has been changed since.

    Results, tests and texts do not count: a run of several suites writes them in between. None without git.
    """

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", *_MEASURED]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    if root is None:
        return None
    try:
        newest, changed = git("log", "-1", "--format=%h"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return newest + ("+" if changed else "") if newest else None


def split_cores(pin: bool) -> tuple[set[int] | None, set[int] | None]:
    """One core for the server and one for everything else, or (None, None) when nothing is to be pinned."""
    if not pin:
        return None, None
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(allowed) < 2:
        hint = "Leave out --pin or allow more cores."
        raise ConfigError(f"Pinning needs two cores, this process may use {len(allowed)}.", hint=hint)
    return {allowed[0]}, {allowed[1]}


@contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """Run the block, and whatever threads and processes it starts, on these cores (None: wherever)."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


large_page_shares: list[float] = []  # of packed weights, by process, as `note_large_pages` has found them


def note_large_pages(process: int | str = "self") -> None:
    """Notes how much of the packed weights that a process maps lies in pages of 2 MiB: a step depends on it."""
    from moa_server.verifier.memory_check import mapped_pages

    pages = mapped_pages(".tiles", process)
    if pages is not None:
        large_page_shares.append(pages.large_share)


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads together, to a hundredth."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        raise UnavailableError(f"Process {pid} has ended.", hint="Look at its log.") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float | None:
    """What is resident of a process in MB (10^6 bytes); None if it has ended, or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith("VmRSS:")), None)
    return None if line is None else round(int(line.split()[1]) * 1024 / 1e6, 1)


def collect_interleaved(
    cases: Mapping[str, Callable[[], float]], repeats: int, *, warm_up: int = 2
) -> dict[str, list[float]]:
    """What each case says of itself, [repeats] each; entry i of all of them was measured in round i.

    The order rotates by one from round to round, so that no case always follows the same other one.
    """
    taken: dict[str, list[float]] = {name: [] for name in cases}
    with without_collector():
        for turn in range(-warm_up, repeats):
            for name in rotated(list(cases), turn):
                measured = cases[name]()
                if turn >= 0:
                    taken[name].append(measured)
    return taken


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names, beginning with another one in each turn."""
    return [names[(place + turn) % len(names)] for place in range(len(names))]


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    with collector_paused():
        yield
