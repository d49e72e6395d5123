"""How fast a model would be here, from the bytes that a step reads and the speed of this machine's memory.

An estimate, and a limit: nothing is loaded. Kernels reach most of it where one row is computed (docs/engine.md).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from moa_kernels import PAGE_ROWS, set_threads, threads
from moa_shared.protocol.levels import INT8

from moa_server.verifier.sized_target import SizedTarget

READ_BYTES = 1 << 28  # beyond the caches of most processors
REPEATS = 5
TYPICAL_TOKENS = 1024  # of a chat of several turns


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A plain step after TYPICAL_TOKENS.

    Args:
        nbytes: that it reads: weights, keys and values.
        memory_bytes_per_s: of this machine, with as many threads as the target has.
    """

    nbytes: int
    memory_bytes_per_s: float

    @property
    def step_ms(self) -> float:
        return 1e3 * self.nbytes / self.memory_bytes_per_s

    @property
    def tokens_per_s(self) -> float:
        return 1e3 / self.step_ms


def estimate_step(target: SizedTarget, level: str, weights_nbytes: int, thread_count: int) -> StepEstimate | None:
    """The estimate; None on a level that torch computes, which is bound by other things, and may run on a GPU.

    Args:
        weights_nbytes: of what each step reads.
        thread_count: of the settings.
    """
    if level != INT8:
        return None
    set_threads(thread_count)
    tokens = min(TYPICAL_TOKENS, target.context_length)
    return StepEstimate(weights_nbytes + -(-tokens // PAGE_ROWS) * target.page_nbytes, memory_bytes_per_s(threads()))


def memory_bytes_per_s(thread_count: int) -> float:
    """What so many threads read together: dot products, which are bound by memory."""
    array = np.ones(READ_BYTES // 4, np.float32)
    parts = np.array_split(array, thread_count)
    best = 0.0
    with ThreadPoolExecutor(thread_count) as pool:
        for _ in range(REPEATS):  # other processes only take time
            began = time.perf_counter()
            list(pool.map(lambda part: np.dot(part, part), parts))
            best = max(best, array.nbytes / (time.perf_counter() - began))
    return best
