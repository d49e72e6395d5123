"""How fast this machine computes a model, and how many users that feeds."""

from __future__ import annotations

import time
from dataclasses import dataclass

from moa_server.verifier import PREFILL_CHUNK_TOKENS, Target
from moa_server.verifier.execution_level import Execution
from moa_server.verifier.self_test import measure_times

READING_TOKENS_PER_S = 5.0  # a little faster than people read
PROMPT_TOKENS = 2.0  # that are new, for each token of an answer: 400 before an answer of 200
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Speed:
    """Times of a model on this machine.

    Args:
        step_ms: of a plain step.
        row_ms: of each further row in it.
        read_ms: of each token of a prompt.
    """

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
    for _ in range(REPEATS):  # other processes only add time
        cache = target.new_cache()
        began = time.perf_counter()
        target.forward(cache, [1] * tokens, None, slice(tokens - 1, None))
        took.append(time.perf_counter() - began)
        cache.release()
    return 1e3 * min(took) / tokens
