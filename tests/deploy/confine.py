"""Runs a command under what a systemd unit forbids, where there is no systemd to do it: python -m ... UNIT -- COMMAND...

It applies NoNewPrivileges, MemoryDenyWriteExecute, SystemCallFilter and RestrictAddressFamilies, by the kernel's own
means, as systemd does. The caller sees to file systems and capabilities. Linux from 6.3 on.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38
PR_SET_MDWE = 65
ERRNO_EPERM = 0x00050001  # what a refused call returns
ALLOW = 0x7FFF0000
EQUAL = 4
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}


class Comparison(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def read_unit(path: Path) -> Mapping[str, Sequence[str]]:
    """The values of each name of a unit, in order."""
    values: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            values[name].append(value)
    return values


def allowed_calls(filters: Iterable[str]) -> set[str]:
    """The system calls that SystemCallFilter= lines leave, the first of which names what is allowed."""
    allowed: set[str] = set()
    for line in filters:
        names = {name for word in line.removeprefix("~").split() for name in expand(word)}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed | expand("@default")


def expand(word: str) -> set[str]:
    """A call, or those of a group."""
    if not word.startswith("@"):
        return {word}
    lines = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", word], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    words = [line.strip() for line in lines[1:] if line.strip() and not line.strip().startswith("#")]
    return {name for each in words for name in expand(each)}


def confine(unit: Mapping[str, Sequence[str]]) -> None:
    """Applies the unit to this process; what it runs cannot undo it."""
    calls = allowed_calls(unit["SystemCallFilter"])  # before it is forbidden to find out
    families = [FAMILIES[name] for line in unit["RestrictAddressFamilies"] for name in line.split()]
    libc = ctypes.CDLL(None, use_errno=True)
    for flag, name in ((PR_SET_NO_NEW_PRIVS, "NoNewPrivileges"), (PR_SET_MDWE, "MemoryDenyWriteExecute")):
        if unit[name] == ["yes"] and libc.prctl(flag, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), name)
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(ERRNO_EPERM))
    for name in calls - {"socket"}:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # others are of other processors
            check(seccomp.seccomp_rule_add(rules, ALLOW, number, 0), name)
    number = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        equal = Comparison(0, EQUAL, family, 0)
        check(seccomp.seccomp_rule_add_array(rules, ALLOW, number, 1, ctypes.byref(equal)), "socket")
    check(seccomp.seccomp_load(rules), "seccomp")


def check(result: int, what: str) -> None:
    if result:
        raise OSError(-result, what)


def main() -> None:
    unit, _, *command = sys.argv[1:]
    confine(read_unit(Path(unit)))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
