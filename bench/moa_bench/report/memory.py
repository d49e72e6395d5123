"""How much memory a process has, as Linux tells it."""

from enum import StrEnum
from pathlib import Path


class MemoryKind(StrEnum):
    """The figures of /proc/PID/status: all that is resident, the most that was, and what is not a file's."""

    RESIDENT = "VmRSS"
    PEAK = "VmHWM"
    ANONYMOUS = "RssAnon"


def memory_mb(pid: int, kind: MemoryKind = MemoryKind.RESIDENT) -> float | None:
    """Memory of a process in MB (10^6 bytes); None if it has ended, or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith(f"{kind}:")), None)
    return None if line is None else round(int(line.split()[1]) * 1024 / 1e6, 1)


def forget_peak(pid: int) -> None:
    """Lets the peak of a process begin at what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
