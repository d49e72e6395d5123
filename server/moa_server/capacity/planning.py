"""Plans a server's memory from its settings: finds the model and its drafters, and loads neither's weights."""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.drafter import Checkpoint
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.free_memory import free_memory_bytes
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import INT8

from moa_server.capacity.estimate import estimate_step
from moa_server.capacity.plan import Needed, kv_budget, plan_rooms
from moa_server.capacity.report import Capacity
from moa_server.capacity.speed import measure_speed
from moa_server.engine.sessions.session_size import SessionSize
from moa_server.engine.stepper import Stepper
from moa_server.loading import check_context_length, check_drafter, drafter_paths, memory_source, with_drafters
from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import check_kv, load_execution
from moa_server.verifier.level_choice import choose_level
from moa_server.verifier.sized_target import SizedTarget
from moa_server.verifier.weights_bytes import PROCESS_BYTES, weights_nbytes


def plan_capacity(settings: ServerSettings, memory: int, progress: Progress, *, measures: bool = False) -> Capacity:
    """What fits.

    Args:
        memory: bytes for the whole server; 0: what is free here. With `settings.kv_bytes` it does not matter.
        measures: loads the model too, and measures its speed.

    Raises:
        MoaError: the model or a drafter cannot be used, or the budget holds nothing.
    """
    files = resolve(settings.model, settings.cache_dir, progress)
    check_context_length(settings, files)
    level, _ = choose_level(settings, files.config, files.target_id)
    paths = drafter_paths(settings.drafter, files, settings.cache_dir, progress)
    drafters = [check_drafter(path, files) for _, path in paths]
    needed = needed_memory(files, level, drafters, settings)
    budget = settings.kv_bytes or kv_budget(memory or free_memory_bytes(), needed)
    target = sized_target(settings, files, level)
    rooms = plan_rooms(budget, target.context_length, session_size(target, settings, files, drafters).largest)
    speed = measure_speed(load_execution(files, settings, progress)) if measures else None
    estimate = None if measures else estimate_step(target, level, needed.weights - needed.idle, settings.threads)
    return Capacity(files.target_id, level, needed, budget, rooms, settings.max_sessions, speed, estimate)


def sized_target(settings: ServerSettings, files: ModelFiles, level: str) -> SizedTarget:
    """The target that a server with these settings would have, without its weights.

    Raises:
        ConfigError: the level does not keep keys and values as the settings say.
    """
    check_kv(settings.kv, level)
    return SizedTarget(files.config, level, settings.context_length or None, kv=settings.kv)


def session_size(
    target: SizedTarget, settings: ServerSettings, files: ModelFiles, drafters: Sequence[Checkpoint]
) -> SessionSize:
    """What conversations with these drafters take."""
    sources = [source for each in drafters if (source := memory_source(each, target)) is not None]
    if settings.drafts_here:
        sources = with_drafters(sources, drafters, files, load_first=False)
    return SessionSize(Stepper(target, sources), settings.draft_nodes)


def needed_memory(files: ModelFiles, level: str, drafters: Sequence[Checkpoint], settings: ServerSettings) -> Needed:
    """The memory that a server takes before anybody talks to it.

    Raises:
        ModelSourceError: the model's files cannot be read.
    """
    tensors = sum(tensor.nbytes for each in drafters for tensor in each.tensors.values())
    found = weights_nbytes(files, level, settings.weights)
    is_mapped = level == INT8 and settings.repack_cache
    return Needed(found.total, tensors, PROCESS_BYTES, found.idle, is_mapped)
