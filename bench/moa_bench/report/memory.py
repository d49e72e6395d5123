"""How much memory a process has, as Linux tells it."""

from pathlib import Path


def memory_mb(pid: int) -> float | None:
    """What is resident of a process in MB (10^6 bytes); None if it has ended, or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith("VmRSS:")), None)
    return None if line is None else round(int(line.split()[1]) * 1024 / 1e6, 1)
