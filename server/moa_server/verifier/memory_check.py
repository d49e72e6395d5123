"""What a model takes, from the heads of its files; refuses one that the memory does not hold, before it is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import structlog
from moa_kernels import F16, FORMATS, PAGE_ROWS, Q4_1, Q8, Q8_0
from moa_kernels.bindings import STORED_FLOATS
from moa_shared.defaults import BF16, FLOAT32, INT8
from moa_shared.errors import ConfigError, InternalError
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.network.layer_sizes import cached_heads
from moa_shared.models.tensors import is_of_expert
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS, idle_share
from moa_shared.programs.machine import FreeMemory, free_memory
from rich.filesize import decimal

from moa_server.settings import ServerSettings
from moa_server.verifier.target import KVCache, Request, Rows, Target, TargetOutput, TargetShape

if TYPE_CHECKING:
    from moa_shared.drafter.checkpoint.checkpoint import Checkpoint

PROCESS_BYTES = 150_000_000  # of a server of a tiny model: Python, gRPC, the tokenizer (measured; 85 MB of it files)


@dataclass(frozen=True, slots=True)
class WeightsBytes:
    """What a model's weights take.

    `total`: all of them, in bytes. `idle`: those of experts that a step of one row does not read; 0: the model has no
    experts.
    """

    total: int
    idle: int = 0


def weights_nbytes(files: ModelFiles, level: str, weights: str = "q8") -> WeightsBytes:
    """The bytes of the weights on a level, with floats in 8 or 4 bits where the level packs them."""
    reader = WeightReader(files)
    total = experts = 0.0
    for name in reader.names():
        nbytes = _served_bytes(reader, name, level, weights)
        total += nbytes
        if is_of_expert(name):
            experts += nbytes
    return WeightsBytes(int(total), int(idle_share(files.config) * int(experts)))


def _served_bytes(reader: WeightReader, name: str, level: str, weights: str) -> float:
    shape = reader.shape(name)
    numbers = math.prod(shape)
    if level != INT8:
        return numbers * (4 if level == FLOAT32 else 2)
    if len(shape) < 2:
        return 4 * numbers
    if name == LAYER_EMBEDDINGS or (name == EMBEDDINGS and HEAD in reader.names()):  # looked up in the file
        return 0
    kind = reader.format_of(name)
    is_float = kind in STORED_FLOATS and weights == "q4" and name not in (EMBEDDINGS, HEAD)
    stored = FORMATS.get(kind, FORMATS[Q4_1 if is_float else Q8_0])  # as plan_places decides
    return numbers * stored.size / stored.values


NUMBER_BYTES = {INT8: 2, BF16: 2, FLOAT32: 4}  # of a key or value, on each level, if they are not kept in 8 bits
SCALE_BYTES = 4  # of a row of a head in 8 bits


class SizedCache(KVCache):
    """A cache that holds nothing. `page_nbytes`: of the keys and values of a page."""

    nbytes = 0

    def __init__(self, page_nbytes: int) -> None:
        super().__init__()
        self._page_nbytes = page_nbytes

    def most_nbytes(self, rows: int) -> int:
        return -(-rows // PAGE_ROWS) * self._page_nbytes

    def _free(self) -> None:
        raise _computes_nothing()

    def reserve(self, rows: int) -> None:
        raise _computes_nothing()

    def _move(self, source: Sequence[int], start: int) -> None:
        raise _computes_nothing()

    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        raise _computes_nothing()


class SizedTarget(Target):
    """The sizes of a target. `kv`: how the level int8 keeps keys and values: one of `moa_kernels.KV_FORMATS`."""

    def __init__(
        self, config: Mapping[str, Any], level: str, context_length: int | None = None, *, kv: str = F16
    ) -> None:
        heads, trained = int(config["num_attention_heads"]), int(config["max_position_embeddings"])
        super().__init__(
            TargetShape(
                int(config["vocab_size"]),
                int(config["hidden_size"]),
                int(config["num_hidden_layers"]),
                int(config.get("num_key_value_heads") or heads),
                int(config.get("head_dim") or config["hidden_size"] // heads),
                trained if context_length is None else min(context_length, trained),
            )
        )
        self.page_nbytes = PAGE_ROWS * sum(
            2 * count * (dim + SCALE_BYTES if kv == Q8 else dim * NUMBER_BYTES[level])
            for count, dim in cached_heads(config)
        )

    def new_cache(self) -> SizedCache:
        return SizedCache(self.page_nbytes)

    def normed(self, state: Rows) -> Rows:
        raise _computes_nothing()

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        def rows(read: Rows) -> Rows:
            raise _computes_nothing()

        return rows

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        raise _computes_nothing()


def _computes_nothing() -> InternalError:
    return InternalError("A target without weights was asked to compute.")


log = structlog.get_logger()

LEAST_TOKENS = 1024  # of one conversation, where the operator gives keys and values no bytes of their own


def require_memory(files: ModelFiles, settings: ServerSettings, level: str, free: FreeMemory | None = None) -> None:
    """Looks at what the model takes and at what can be had.

    Packed weights count, though they are mapped: each step reads all of them. Of a mixture's experts only those count
    that a step of one row reads; where the others do not fit, the log says so. `free`: None: what can be had now.
    """
    if not settings.memory_check:
        return
    free = free or free_memory()
    target = SizedTarget(files.config, level, settings.context_length or None)
    least = target.new_cache().most_nbytes(min(LEAST_TOKENS, target.context_length))
    weights, rows = weights_nbytes(files, level, settings.weights), settings.kv_bytes or least
    idle = weights.idle if level == INT8 else 0  # of a file that is mapped: what is not chosen is never read
    all_weights, others = weights.total, rows + PROCESS_BYTES
    if all_weights + others <= free.nbytes:
        return
    limit = f", under a limit of {decimal(free.limit)}" if free.limit is not None else ""
    if all_weights - idle + others <= free.nbytes:
        log.warning(
            "memory does not hold all experts: the others are read from the disk when a token goes to them",
            weights_bytes=all_weights,
            read_each_step_bytes=all_weights - idle,
            free_bytes=free.nbytes,
        )
        return
    counted = f"{decimal(all_weights - idle)} for its weights"
    if idle:
        counted += f" (of {decimal(all_weights)}: the experts that one token goes to, and all else)"
    hint = "lower --kv-bytes, " if settings.kv_bytes > least else ""
    raise ConfigError(
        f"{files.target_id} needs {decimal(all_weights - idle + others)} of memory: {counted}, {decimal(rows)} for "
        f"keys and values, {decimal(PROCESS_BYTES)} for the program. {decimal(free.nbytes)} can be had here{limit}.",
        hint=f"End other programs, {hint}or take a smaller model or one with fewer bits a weight; "
        "--no-memory-check starts all the same, and reads weights from the disk again and again.",
    )
