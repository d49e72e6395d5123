"""The memory of another process, and of one that is not there."""

from __future__ import annotations

import subprocess
import sys

from moa_bench.report.memory import MemoryKind, forget_peak, memory_mb

# Small and its own: of a worker with many tests behind it the system takes memory back meanwhile.
BALLAST = """
input()
ballast = bytearray(400_000_000)
ballast[::4096] = b"x" * len(ballast[::4096])
print("written", flush=True)
input()
del ballast
print("freed", flush=True)
input()
"""


def test_memory_that_is_written_to_is_resident_and_its_peak_is_known_until_it_is_forgotten() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BALLAST], stdin=pipe, stdout=pipe, text=True, bufsize=1) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def now_mb(kind: MemoryKind) -> float:
            return memory_mb(child.pid, kind) or 0.0

        before = now_mb(MemoryKind.PEAK)
        child.stdin.write("\n")
        assert child.stdout.readline() == "written\n"
        assert now_mb(MemoryKind.RESIDENT) >= now_mb(MemoryKind.ANONYMOUS) >= 400
        child.stdin.write("\n")
        assert child.stdout.readline() == "freed\n"
        assert now_mb(MemoryKind.PEAK) > before + 390 > now_mb(MemoryKind.RESIDENT) + 300
        forget_peak(child.pid)
        assert now_mb(MemoryKind.PEAK) < before + 100
        child.stdin.write("\n")


def test_a_process_that_is_not_there_has_no_memory() -> None:
    assert memory_mb(2**22 + 1) is None
