"""What a server with some settings would be here: how many conversations of which length fit, and how fast it is."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from moa_kernels import set_threads, threads
from moa_shared.errors import ConfigError
from moa_shared.models.checkpoints import CHECKPOINT_EVERY, NEWEST_CHECKPOINTS, most_checkpoints
from moa_shared.programs.command_line import table
from moa_shared.programs.machine import free_memory, ms_since
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import INT8
from rich.filesize import decimal

from moa_server.loading import ServerPlan
from moa_server.settings import ServerSettings
from moa_server.verifier import PREFILL_CHUNK_TOKENS
from moa_server.verifier.execution_level import Execution
from moa_server.verifier.memory_check import LEAST_TOKENS, PROCESS_BYTES
from moa_server.verifier.startup_check import measure_times

READ_BYTES = 1 << 28  # beyond the caches of most processors
TYPICAL_TOKENS = 1024  # of a chat of several turns


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A plain step after TYPICAL_TOKENS."""

    nbytes: int  # that it reads: weights, keys and values
    memory_bytes_per_s: float  # of this machine, with as many threads as the target has

    @property
    def tokens_per_s(self) -> float:
        return self.memory_bytes_per_s / self.nbytes

    def __str__(self) -> str:
        return (
            f"at most about {self.tokens_per_s:.3g} tokens/s; a plain step reads {decimal(self.nbytes)}, "
            f"and memory here gives {self.memory_bytes_per_s / 1e9:.3g} GB/s (an estimate)"
        )


def memory_bytes_per_s(thread_count: int) -> float:
    """What so many threads read together: dot products, which are bound by memory."""
    array = np.ones(READ_BYTES // 4, np.float32)
    parts = np.array_split(array, thread_count)
    best = 0.0
    with ThreadPoolExecutor(thread_count) as pool:
        for _ in range(5):  # other processes only take time
            began = time.perf_counter()
            list(pool.map(lambda part: np.dot(part, part), parts))
            best = max(best, array.nbytes / (time.perf_counter() - began))
    return best


def estimate_step(plan: ServerPlan) -> StepEstimate | None:
    """None on a level that torch computes, which is bound by other things, and may run on a GPU."""
    if plan.level != INT8:
        return None
    set_threads(plan.settings.threads)
    cache, rows = plan.target.new_cache(), min(TYPICAL_TOKENS, plan.target.context_length)
    read = cache.most_nbytes(rows) - most_checkpoints(rows) * cache.checkpoint_nbytes
    return StepEstimate(plan.needed.weights - plan.needed.idle + read, memory_bytes_per_s(threads()))


READING_TOKENS_PER_S = 5.0  # a little faster than people read
PROMPT_TOKENS = 2.0  # that are new, for each token of an answer: 400 before an answer of 200


@dataclass(frozen=True, slots=True)
class Speed:
    step_ms: float
    row_ms: float
    read_ms: float

    @property
    def users(self) -> int:
        """How many get READING_TOKENS_PER_S each: a forward has a row for each, and prompts are read besides."""
        alone_ms = self.step_ms - self.row_ms  # of a forward, whatever is in it
        each_ms = max(self.row_ms + PROMPT_TOKENS * self.read_ms, 1e-3)
        return max(0, int((1e3 / READING_TOKENS_PER_S - alone_ms) / each_ms))


def measure_speed(execution: Execution) -> Speed:
    """Measures all three, for a text that is short."""
    execution.before()
    target, test = execution.target, execution.test or measure_times(execution.target)
    tokens = min(PREFILL_CHUNK_TOKENS, target.context_length)
    took = []
    for _ in range(2):  # other processes only add time
        cache = target.new_cache()
        began = time.perf_counter()
        target.forward(cache, [1] * tokens, None, slice(tokens - 1, None))
        took.append(ms_since(began))
        cache.release()
    return Speed(test.step_ms, test.row_ms, min(took) / tokens)


def plan_capacity(settings: ServerSettings, memory: int, progress: Progress) -> dict[str, Any]:
    """What fits, as --json says it. `memory`: of the whole server, if not `settings.kv_bytes` says; 0: what is free."""
    plan = ServerPlan(settings, progress)
    needed, memory = plan.needed, memory or free_memory().nbytes
    budget = settings.kv_bytes or needed.kv_budget(memory)
    if not budget:
        raise ConfigError(
            f"{decimal(memory)} of memory do not hold the model: it takes {decimal(needed.least)} before anybody asks.",
            hint="Plan with more --memory, or a smaller model.",
        )
    context = plan.target.context_length
    # Of a chat of several turns, and of one over a document; then they double.
    lengths = sorted({min(LEAST_TOKENS << step, context) for step in (0, *range(2, 20))})
    sizes = {tokens: plan.session_nbytes(tokens) for tokens in lengths}
    tokens, nbytes = next(iter(sizes.items()))
    if nbytes > budget:
        raise ConfigError(
            f"{decimal(budget)} of keys and values hold no conversation: one of {tokens} tokens takes "
            f"{decimal(nbytes)}.",
            hint="Plan with more --kv-bytes or --memory, or a smaller model.",
        )
    told: dict[str, Any] = {
        "target": plan.files.target_id,
        "level": plan.level,
        "weights_bytes": needed.weights,
        "drafters_bytes": needed.drafters,
        "process_bytes": PROCESS_BYTES,
        "kv_bytes": budget,
        "max_sessions": settings.max_sessions,
        "state_bytes": plan.target.new_cache().checkpoint_nbytes,
        "sessions": [
            {"tokens": tokens, "bytes_each": nbytes, "that_fit": budget // nbytes} for tokens, nbytes in sizes.items()
        ],
    }
    if (estimate := estimate_step(plan)) is not None:
        told["estimated"] = {
            "step_ms": round(1e3 / estimate.tokens_per_s, 2),
            "step_bytes": estimate.nbytes,
            "memory_bytes_per_s": round(estimate.memory_bytes_per_s),
        }
    return told


def capacity_text(told: Mapping[str, Any]) -> str:
    weights, drafters, process = (told[f"{each}_bytes"] for each in ("weights", "drafters", "process"))
    rows = [("tokens", "a session takes", "sessions that answer at once")]
    rows += [(str(each["tokens"]), decimal(each["bytes_each"]), str(each["that_fit"])) for each in told["sessions"]]
    text = (
        f"{told['target']} at {told['level']}\n"
        f"before anybody asks  {decimal(weights + drafters + process)}: weights {decimal(weights)}, "
        f"drafters {decimal(drafters)}, the program {decimal(process)}\n"
        f"keys and values      {decimal(told['kv_bytes'])}\n\n{table(rows, right=(0, 1, 2))}\n"
        f"Idle sessions keep only their text; the server holds {told['max_sessions']} in all.\n"
    )
    if nbytes := told["state_bytes"]:
        text += (
            f"Each holds recurrent states of {decimal(nbytes)}, and as much again for each checkpoint of them: up to "
            f"{NEWEST_CHECKPOINTS}, and one in {CHECKPOINT_EVERY} tokens.\n"
        )
    if (found := told.get("estimated")) is not None:
        estimate = StepEstimate(found["step_bytes"], found["memory_bytes_per_s"])
        text += f"\nSpeed of one user here: {estimate}.\n`moa-server doctor --measure` loads the model and measures.\n"
    return text
