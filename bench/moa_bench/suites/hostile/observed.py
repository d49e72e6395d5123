"""What an honest client and the server's memory show: gaps between tokens, and resident bytes."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from moa_shared.errors import UnavailableError

from moa_bench.harness.answers import TimedAnswer
from moa_bench.report.memory import memory_mb
from moa_bench.suites.hostile.attack_result import Gaps

SAMPLE_SECONDS = 0.1


def gaps_of(answers: Sequence[TimedAnswer], expected: Sequence[int]) -> Gaps:
    """Gaps of answers that should all read `expected`."""
    gaps_ms = np.concatenate([1e3 * np.diff(answer.arrivals_s) for answer in answers])
    return Gaps(
        round(float(np.percentile(gaps_ms, 95)), 1),
        round(float(gaps_ms.max()), 1),
        len(answers),
        all(answer.tokens == tuple(expected) for answer in answers),
    )


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    found = memory_mb(pid)
    if found is None:
        raise UnavailableError(f"The memory of process {pid} cannot be read.", hint="Measure on Linux.")
    return found


@dataclass(slots=True)
class MemoryPeak:
    """The most memory that a process had while it was watched."""

    mb: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def watching_memory(measure_mb: Callable[[], float]) -> Iterator[MemoryPeak]:
    """Samples memory on a thread while the block runs."""
    peak = MemoryPeak(measure_mb())

    def watch() -> None:
        while not peak._over.wait(SAMPLE_SECONDS):
            peak.mb = max(peak.mb, measure_mb())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        peak._over.set()
        thread.join()
