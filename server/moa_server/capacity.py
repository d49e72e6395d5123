"""What a server with some settings would be here: how many conversations of which length fit, and how fast it is."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from moa_kernels import PAGE_ROWS, set_threads, threads
from moa_shared.defaults import INT8
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.command_line import table
from moa_shared.programs.machine import free_memory_bytes, ms_since
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.engine.registry import SessionSize
from moa_server.engine.stepper import Stepper
from moa_server.loading import check_context_length, check_drafter, drafter_paths, memory_source, with_drafters
from moa_server.settings import ServerSettings
from moa_server.verifier import PREFILL_CHUNK_TOKENS
from moa_server.verifier.execution_level import Execution, check_kv, choose_level
from moa_server.verifier.memory_check import PROCESS_BYTES, SizedTarget, weights_nbytes
from moa_server.verifier.startup_check import measure_times
from moa_server.verifier.target import KV_SHARE

READ_BYTES = 1 << 28  # beyond the caches of most processors
READS = 5
TYPICAL_TOKENS = 1024  # of a chat of several turns


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A plain step after TYPICAL_TOKENS.

    `nbytes`: that it reads: weights, keys and values. `memory_bytes_per_s`: of this machine, with as many threads as
    the target has.
    """

    nbytes: int
    memory_bytes_per_s: float

    @property
    def step_ms(self) -> float:
        return 1e3 * self.nbytes / self.memory_bytes_per_s

    @property
    def tokens_per_s(self) -> float:
        return 1e3 / self.step_ms

    def __str__(self) -> str:
        return (
            f"at most about {self.tokens_per_s:.3g} tokens/s; a plain step reads {decimal(self.nbytes)}, "
            f"and memory here gives {self.memory_bytes_per_s / 1e9:.3g} GB/s (an estimate)"
        )


def estimate_step(target: SizedTarget, level: str, weights_nbytes: int, thread_count: int) -> StepEstimate | None:
    """The estimate; None on a level that torch computes, which is bound by other things, and may run on a GPU.

    `weights_nbytes`: of what each step reads.
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
    for _ in range(READINGS):  # other processes only add time
        cache = target.new_cache()
        began = time.perf_counter()
        target.forward(cache, [1] * tokens, None, slice(tokens - 1, None))
        took.append(ms_since(began))
        cache.release()
    return Speed(test.step_ms, test.row_ms, min(took) / tokens)


LENGTHS = (1024, 4096)  # of a chat of several turns, and of one over a document; then they double


@dataclass(frozen=True, slots=True)
class Needed:
    """The memory that is taken before anybody talks to the server, in bytes, besides the program's own.

    `idle`: of `weights`: those of experts that a step of one row does not read, and that the system may drop; it reads
    those again that are chosen.
    """

    weights: int
    drafters: int
    idle: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.drafters + PROCESS_BYTES

    @property
    def least(self) -> int:
        """What is needed where experts are read from the disk when a token goes to them."""
        return self.total - self.idle

    def kv_budget(self, memory: int) -> int:
        """The bytes that all keys and values get on a machine with so much memory; 0: it does not hold the model."""
        left = memory - (self.total if self.total < memory else self.least)
        return int(KV_SHARE * max(0, left))


def plan_capacity(settings: ServerSettings, memory: int, progress: Progress) -> dict[str, Any]:
    """What fits, as --json says it.

    `memory`: bytes for the whole server; 0: what is free here. With `settings.kv_bytes` it does not matter.
    """
    plan = ServerPlan(settings, progress)
    needed, memory = plan.needed, memory or free_memory_bytes()
    budget = settings.kv_bytes or needed.kv_budget(memory)
    if not budget:
        raise ConfigError(
            f"{decimal(memory)} of memory do not hold the model: it takes {decimal(needed.least)} before anybody asks.",
            hint="Plan with more --memory, or a smaller model.",
        )
    context, lengths = plan.target.context_length, [*LENGTHS]
    while lengths[-1] < context:
        lengths.append(2 * lengths[-1])
    sizes = {tokens: plan.session_nbytes(tokens) for tokens in sorted({min(each, context) for each in lengths})}
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
        "sessions": [
            {"tokens": tokens, "bytes_each": nbytes, "that_fit": budget // nbytes} for tokens, nbytes in sizes.items()
        ],
    }
    if (estimate := plan.estimate()) is not None:
        told["estimated"] = {
            "step_ms": round(estimate.step_ms, 2),
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
    if (found := told.get("estimated")) is not None:
        estimate = StepEstimate(found["step_bytes"], found["memory_bytes_per_s"])
        text += f"\nSpeed of one user here: {estimate}.\n`moa-server doctor --measure` loads the model and measures.\n"
    return text


class ServerPlan:
    """What a server with these settings would be here, each part found when it is first asked for; loads no weights."""

    def __init__(self, settings: ServerSettings, progress: Progress) -> None:
        self.settings = settings
        self._progress = progress

    @cached_property
    def files(self) -> ModelFiles:
        files = resolve(self.settings.model, self.settings.cache_dir, self._progress)
        check_context_length(self.settings, files)
        return files

    @cached_property
    def level(self) -> str:
        return choose_level(self.settings, self.files.config, self.files.target_id)[0]

    @cached_property
    def drafters(self) -> dict[str, Checkpoint]:
        """By name, of those that would be served."""
        paths = drafter_paths(self.settings.drafter, self.files, self.settings.cache_dir, self._progress)
        return {name: check_drafter(path, self.files) for name, path in paths}

    @cached_property
    def needed(self) -> Needed:
        tensors = sum(tensor.nbytes for each in self.drafters.values() for tensor in each.tensors.values())
        found = weights_nbytes(self.files, self.level, self.settings.weights)
        return Needed(found.total, tensors, found.idle if self.level == INT8 else 0)  # which maps them

    @cached_property
    def target(self) -> SizedTarget:
        settings = self.settings
        check_kv(settings.kv, self.level)
        return SizedTarget(self.files.config, self.level, settings.context_length or None, kv=settings.kv)

    @cached_property
    def session_nbytes(self) -> Callable[[int], int]:
        drafters = list(self.drafters.values())
        sources = [source for each in drafters if (source := memory_source(each, self.target)) is not None]
        if self.settings.drafts_here:
            sources = with_drafters(sources, drafters, self.files, load_first=False)
        return SessionSize(Stepper(self.target, sources), self.settings.draft_nodes).largest

    def estimate(self) -> StepEstimate | None:
        read = self.needed.weights - self.needed.idle
        return estimate_step(self.target, self.level, read, self.settings.threads)
