"""What a server with some settings would be here: how many conversations of which length fit, and how fast it is."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from moa_kernels import PAGE_ROWS, set_threads, threads
from moa_shared.defaults import INT8
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.command_line import table
from moa_shared.programs.machine import free_memory_bytes
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.engine.sessions.registry import SessionSize
from moa_server.engine.stepper import Stepper
from moa_server.loading import check_context_length, check_drafter, drafter_paths, memory_source, with_drafters
from moa_server.settings import ServerSettings
from moa_server.verifier import PREFILL_CHUNK_TOKENS, Target
from moa_server.verifier.execution_level import Execution, check_kv, choose_level, load_execution
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


def measure_speed(execution: Execution) -> Speed:
    """Measures all three, for a text that is short."""
    execution.before()
    test = execution.test or measure_times(execution.target)
    return Speed(test.step_ms, test.row_ms, _measure_reading(execution.target))


def users_fed(speed: Speed, prompt_tokens: float = PROMPT_TOKENS, tokens_per_s: float = READING_TOKENS_PER_S) -> int:
    """How many users get so many tokens a second each: a forward has a row for each, and prompts are read besides.

    `prompt_tokens`: that must be read for each token of an answer.
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


LENGTHS = (1024, 4096)  # of a chat of several turns, and of one over a document; then they double


@dataclass(frozen=True, slots=True)
class ConversationRoom:
    """The conversations of one length. `tokens`: of each, question and answer together."""

    tokens: int
    nbytes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Needed:
    """The memory that is taken before anybody talks to the server, in bytes.

    `idle`: of `weights`: those of experts that a step of one row does not read. `is_mapped`: the system may drop
    weights, and reads those again that are chosen.
    """

    weights: int
    drafters: int
    process: int
    idle: int = 0
    is_mapped: bool = False

    @property
    def total(self) -> int:
        return self.weights + self.drafters + self.process

    @property
    def least(self) -> int:
        """What is needed where experts are read from the disk when a token goes to them."""
        return self.total - self.idle if self.is_mapped else self.total


def session_lengths(context_tokens: int) -> list[int]:
    """The lengths to tell, in tokens: usual ones, and the whole context."""
    lengths = [*LENGTHS]
    while lengths[-1] < context_tokens:
        lengths.append(2 * lengths[-1])
    return sorted({min(length, context_tokens) for length in lengths})


def kv_budget(memory: int, needed: Needed) -> int:
    """The bytes that all keys and values get on a machine with so much memory, as a server there would decide."""
    left = memory - (needed.total if needed.total < memory else needed.least)
    if left <= 0:
        raise ConfigError(
            f"{decimal(memory)} of memory do not hold the model: it takes {decimal(needed.least)} before anybody asks.",
            hint="Plan with more --memory, or a smaller model.",
        )
    return int(KV_SHARE * left)


def plan_rooms(budget: int, context_tokens: int, session_nbytes: Callable[[int], int]) -> list[ConversationRoom]:
    """What fits into a budget of keys and values. `session_nbytes`: of a conversation of so many tokens."""
    rooms = []
    for tokens in session_lengths(context_tokens):
        nbytes = session_nbytes(tokens)
        rooms.append(ConversationRoom(tokens, nbytes, budget // nbytes))
    first = rooms[0]
    if not first.sessions:
        raise ConfigError(
            f"{decimal(budget)} of keys and values hold no conversation: "
            f"one of {first.tokens} tokens takes {decimal(first.nbytes)}.",
            hint="Plan with more --kv-bytes or --memory, or a smaller model.",
        )
    return rooms


READING = f"{READING_TOKENS_PER_S:g} tokens/s"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was planned.

    Args:
        target: the model's name, on this `level`.
        speed: measured here; None: it was not asked for.
        estimate: of the speed, from sizes; None: it was measured, or the level has none.
    """

    target: str
    level: str
    needed: Needed
    budget: int
    rooms: Sequence[ConversationRoom]
    most_sessions: int
    speed: Speed | None = None
    estimate: StepEstimate | None = None


def capacity_text(capacity: Capacity) -> str:
    needed = capacity.needed
    lines = [
        f"{capacity.target} at {capacity.level}",
        f"before anybody asks  {decimal(needed.total)}: weights {decimal(needed.weights)}, "
        f"drafters {decimal(needed.drafters)}, the program {decimal(needed.process)}",
        f"keys and values      {decimal(capacity.budget)}",
        "",
    ]
    rows = [("tokens", "a session takes", "sessions that answer at once")]
    rows += [(f"{room.tokens}", decimal(room.nbytes), f"{room.sessions}") for room in capacity.rooms]
    text = "\n".join(lines) + "\n" + table(rows, right=(0, 1, 2)) + "\n"
    text += f"Idle sessions keep only their text; the server holds {capacity.most_sessions} in all.\n"
    if capacity.speed is not None:
        text += "\n" + speed_text(capacity.speed) + "\n"
    if capacity.estimate is not None:
        text += (
            f"\nSpeed of one user here: {estimate_text(capacity.estimate)}.\n--measure loads the model and measures.\n"
        )
    return text


def estimate_text(estimate: StepEstimate) -> str:
    return (
        f"at most about {estimate.tokens_per_s:.3g} tokens/s; a plain step reads {decimal(estimate.nbytes)}, "
        f"and memory here gives {estimate.memory_bytes_per_s / 1e9:.3g} GB/s (an estimate)"
    )


def speed_text(speed: Speed) -> str:
    return (
        f"A plain step takes {speed.step_ms:.1f} ms here, each further row {speed.row_ms:.2f} ms, "
        f"a token of a prompt {speed.read_ms:.2f} ms.\n"
        f"So {users_fed(speed)} users at once get {READING} each where prompts bring {PROMPT_TOKENS:g} new tokens for "
        f"each of an answer, and {users_fed(speed, 0.0)} while no prompt is read."
    )


def capacity_json(capacity: Capacity) -> str:
    needed, speed = capacity.needed, capacity.speed
    told: dict[str, object] = {
        "target": capacity.target,
        "level": capacity.level,
        "weights_bytes": needed.weights,
        "drafters_bytes": needed.drafters,
        "process_bytes": needed.process,
        "kv_bytes": capacity.budget,
        "max_sessions": capacity.most_sessions,
        "sessions": [
            {"tokens": room.tokens, "bytes_each": room.nbytes, "that_fit": room.sessions} for room in capacity.rooms
        ],
    }
    if capacity.estimate is not None:
        told["estimated"] = {
            "step_ms": round(capacity.estimate.step_ms, 2),
            "step_bytes": capacity.estimate.nbytes,
            "memory_bytes_per_s": round(capacity.estimate.memory_bytes_per_s),
        }
    if speed is not None:
        told["measured"] = {
            "step_ms": round(speed.step_ms, 2),
            "row_ms": round(speed.row_ms, 3),
            "read_ms": round(speed.read_ms, 3),
            "tokens_per_s": READING_TOKENS_PER_S,
            "prompt_tokens": PROMPT_TOKENS,
            "users": users_fed(speed),
            "users_without_prompts": users_fed(speed, 0.0),
        }
    return json.dumps(told, indent=2) + "\n"


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
        return Needed(found.total, tensors, PROCESS_BYTES, found.idle, self.level == INT8)

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

    def measure(self) -> tuple[str, Speed]:
        """The level on which the model was loaded, and how fast it is."""
        execution = load_execution(self.files, self.settings, self._progress)
        return execution.level, measure_speed(execution)


def plan_capacity(settings: ServerSettings, memory: int, progress: Progress, *, measures: bool = False) -> Capacity:
    """What fits.

    `memory`: bytes for the whole server; 0: what is free here. With `settings.kv_bytes` it does not matter.
    """
    plan = ServerPlan(settings, progress)
    budget = settings.kv_bytes or kv_budget(memory or free_memory_bytes(), plan.needed)
    rooms = plan_rooms(budget, plan.target.context_length, plan.session_nbytes)
    speed = plan.measure()[1] if measures else None
    estimate = None if measures else plan.estimate()
    return Capacity(
        plan.files.target_id, plan.level, plan.needed, budget, rooms, settings.max_sessions, speed, estimate
    )
