"""The memory of this process, and of one that is not there."""

from __future__ import annotations

import os

from moa_bench.report.memory import MemoryKind, memory_mb


def test_memory_that_is_written_to_is_resident() -> None:
    ballast = bytearray(400_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    resident, anonymous = (memory_mb(os.getpid(), kind) or 1000.0 for kind in MemoryKind)
    assert resident >= anonymous >= 400


def test_a_process_that_is_not_there_has_no_memory() -> None:
    assert memory_mb(2**22 + 1) is None
