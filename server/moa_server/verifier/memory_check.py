"""Refuses a model that the memory does not hold, before it is loaded. Reads the heads of its files only."""

from __future__ import annotations

import structlog
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_shared.programs.free_memory import FreeMemory, free_memory
from moa_shared.protocol.levels import INT8
from rich.filesize import decimal

from moa_server.settings import ServerSettings
from moa_server.verifier.sized_target import SizedTarget
from moa_server.verifier.weights_bytes import PROCESS_BYTES, weights_nbytes

log = structlog.get_logger()

LEAST_TOKENS = 1024  # of one conversation, where the operator gives keys and values no bytes of their own


def require_memory(files: ModelFiles, settings: ServerSettings, level: str, free: FreeMemory | None = None) -> None:
    """Looks at what the model takes and at what can be had.

    Packed weights count, though they are mapped: each step reads all of them. Of a mixture's experts only those count
    that a step of one row reads; where the others do not fit, the log says so.

    Args:
        free: None: what can be had now.

    Raises:
        ConfigError: there is too little, and the operator has not said to start all the same.
    """
    if not settings.memory_check:
        return
    free = free or free_memory()
    target = SizedTarget(files.config, level, settings.context_length or None)
    least = target.new_cache().most_nbytes(min(LEAST_TOKENS, target.context_length))
    weights, rows = weights_nbytes(files, level, settings.weights), settings.kv_bytes or least
    idle = (
        weights.idle if level == INT8 and settings.repack_cache else 0
    )  # of a file that is mapped: what is not chosen is never read
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
