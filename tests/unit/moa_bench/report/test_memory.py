"""The memory of this process, and of one that is not there."""

from __future__ import annotations

import gc
import os

from moa_bench.report.memory import MemoryKind, forget_peak, memory_mb


def test_memory_that_is_written_to_is_resident_and_its_peak_is_known_until_it_is_forgotten() -> None:
    def now_mb(kind: MemoryKind) -> float:
        return memory_mb(os.getpid(), kind) or 0.0

    gc.collect()  # what earlier tests left would make room for the ballast
    forget_peak(os.getpid())
    before = now_mb(MemoryKind.PEAK)
    ballast = bytearray(400_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    assert now_mb(MemoryKind.RESIDENT) >= now_mb(MemoryKind.ANONYMOUS) >= 400
    del ballast
    assert now_mb(MemoryKind.PEAK) > before + 390 > now_mb(MemoryKind.RESIDENT) + 300
    forget_peak(os.getpid())
    assert now_mb(MemoryKind.PEAK) < before + 100


def test_a_process_that_is_not_there_has_no_memory() -> None:
    assert memory_mb(2**22 + 1) is None
