"""The processor time of another process."""

import os
from pathlib import Path

from moa_shared.errors import UnavailableError


def process_cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads together, to a hundredth."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        raise UnavailableError(f"Process {pid} has ended.", hint="Look at its log.") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
