"""What a figure depends on: machine, versions, commit. Stored with every result, so that figures can be compared."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moa_kernels.library import variant_name
from moa_kernels.variants import VARIANTS

from moa_bench.report.energy import METER

_PACKAGES = ("torch", "transformers", "grpcio", "numpy")
# Paths of a checkout, as git takes them: all but those that change no figure.
_OTHERS = (
    *("bench/results", "bench/moa_bench/report", "bench/moa_bench/runs", "*/tables.py"),
    *("docs", "tests", ".ci", "*.md"),
)
_MEASURED = (".", *(f":!{path}" for path in _OTHERS))


def gather_facts(root: Path | None) -> dict[str, Any]:
    """Facts about this machine and, where `root` is a checkout, about its commit."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(Path("/proc/cpuinfo")),
        "kernels": kernels_here(),
        "counts_energy": METER.counts,
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),  # before the run: not near 0 means that others were at work
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "threads_each": 1,
        "commit": commit_of(root),
    }


def kernels_here() -> str:
    """The instructions that the kernels compute with here, as they choose them: "AVX-512 VNNI"."""
    name = variant_name()
    return next((each.instructions for each in VARIANTS if each.name == name), "no compiled kernels")


def cpu_model(cpuinfo: Path) -> str:
    """The processor's name, from /proc where there is one."""
    return _cpu_field("model name", cpuinfo) or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Instructions that the processor has, in Linux's words; none where they cannot be read."""
    return frozenset(_cpu_field("flags", Path("/proc/cpuinfo")).split())


def _cpu_field(name: str, cpuinfo: Path) -> str:
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def commit_of(root: Path | None) -> str | None:
    """Short name of the newest commit that changes what is measured, with "+" where that has been changed since.

    Results, what shows them, tests and texts do not count: a run of several suites writes them in between.
    None without git, or before the first such commit.
    """
    if root is None:
        return None
    try:
        newest = _git(root, "log", "-1", "--format=%h", "--", *_MEASURED)
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_MEASURED)
    except (OSError, subprocess.SubprocessError):
        return None
    return newest + ("+" if changed else "") if newest else None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
