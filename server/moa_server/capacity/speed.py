"""How fast this machine computes a model, and how many users that feeds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from moa_kernels import PAGE_ROWS, set_threads, threads
from moa_shared.defaults import INT8

from moa_server.verifier import PREFILL_CHUNK_TOKENS, Target
from moa_server.verifier.execution_level import Execution
from moa_server.verifier.memory_check import SizedTarget
from moa_server.verifier.startup_check import measure_times

READ_BYTES = 1 << 28  # beyond the caches of most processors
READS = 5
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
        for _ in range(READS):  # other processes only take time
            began = time.perf_counter()
            list(pool.map(lambda part: np.dot(part, part), parts))
            best = max(best, array.nbytes / (time.perf_counter() - began))
    return best


READING_TOKENS_PER_S = 5.0  # a little faster than people read
PROMPT_TOKENS = 2.0  # that are new, for each token of an answer: 400 before an answer of 200
READINGS = 2


@dataclass(frozen=True, slots=True)
class Speed:
    """Times of a model on this machine."""

    step_ms: float
    row_ms: float
    read_ms: float


def measure_speed(execution: Execution) -> Speed:
    """Measures all three, for a text that is short."""
    execution.before()
    test = execution.test or measure_times(execution.target)
    return Speed(test.step_ms, test.row_ms, _measure_reading(execution.target))


def users_fed(speed: Speed, prompt_tokens: float = PROMPT_TOKENS, tokens_per_s: float = READING_TOKENS_PER_S) -> int:
    """How many users get so many tokens a second each: a forward has a row for each, and prompts are read besides.

    Args:
        prompt_tokens: that must be read for each token of an answer.
    """
    alone_ms = speed.step_ms - speed.row_ms  # of a forward, whatever is in it
    each_ms = max(speed.row_ms + prompt_tokens * speed.read_ms, 1e-3)
    return max(0, int((1e3 / tokens_per_s - alone_ms) / each_ms))


def _measure_reading(target: Target) -> float:
    tokens = min(PREFILL_CHUNK_TOKENS, target.context_length)
    took = []
    for _ in range(READINGS):  # other processes only add time
        cache = target.new_cache()
        began = time.perf_counter()
        target.forward(cache, [1] * tokens, None, slice(tokens - 1, None))
        took.append(time.perf_counter() - began)
        cache.release()
    return 1e3 * min(took) / tokens
