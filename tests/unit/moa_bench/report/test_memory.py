"""The memory of a process, and of one that is not there."""

from __future__ import annotations

import os

from moa_bench.report.memory import memory_mb


def test_the_memory_of_a_process() -> None:
    assert (memory_mb(os.getpid()) or 0.0) > 10.0
    assert memory_mb(2**22 + 1) is None
