"""The processes of a session, as /proc shows them: which run, and where they listen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path

LISTENS = "0A"  # the state of a socket in /proc/net/tcp
_WORD = 8  # hexadecimal digits of 32 bits, which /proc/net/tcp writes in the machine's order


def send_signal(process: int, number: signal.Signals) -> None:
    """Signals a process, if there is one."""
    with suppress(ProcessLookupError):
        os.kill(process, number)


def began(process: int) -> str:
    """When a process began, in ticks since the machine did; empty: there is none, or it has ended."""
    fields = _status(process)
    return fields[19] if fields else ""


def name_of(process: int) -> str:
    """The name of a process; empty: there is none."""
    try:
        return Path(f"/proc/{process}/comm").read_text("utf-8").strip()
    except OSError:
        return ""


def session_processes(leader: int) -> list[int]:
    """All that run in the session that a process began."""
    all_of_this_machine = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in all_of_this_machine if _session(process) == leader]


def listening(processes: Iterable[int]) -> list[str]:
    """The addresses, as HOST:PORT, at which some processes accept TCP connections."""
    sockets = {inode for process in processes for inode in _sockets(process)}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text("utf-8").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and fields[9] in sockets:
                    found.add(_address(fields[1]))
    return sorted(found)


def _address(text: str) -> str:
    """HOST:PORT of an address as /proc/net/tcp writes it."""
    digits, _, port = text.partition(":")
    words = [digits[start : start + _WORD] for start in range(0, len(digits), _WORD)]
    host = ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))
    if isinstance(host, IPv6Address):
        return f"{host.ipv4_mapped}:{int(port, 16)}" if host.ipv4_mapped is not None else f"[{host}]:{int(port, 16)}"
    return f"{host}:{int(port, 16)}"


def _sockets(process: int) -> set[str]:
    """The inodes of a process's sockets; none: it has ended."""
    found = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    found.add(target[len("socket:[") : -1])
    return found


def _session(process: int) -> int:
    """The id of the process that began its session; 0: there is none, or it has ended."""
    fields = _status(process)
    return int(fields[3]) if fields else 0


def _status(process: int) -> list[str]:
    """The fields of /proc/PID/stat from its state on; none: there is no such process, or it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields
