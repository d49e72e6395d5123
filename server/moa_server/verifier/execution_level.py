"""The execution level: which arithmetic decides the text, what computes it, and the hash by which replicas compare it.

`int8` (the kernels) computes a row alike however many there are; `float32` (torch) is the reference; `bf16` (torch, for
GPUs) rounds differently depending on what is computed together, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import structlog
from moa.v1 import moa_pb2 as pb
from moa_kernels import ARITHMETIC, F16, F32, Q4_1, Q8_0, KernelError, explain, set_threads, threads, variant_name
from moa_kernels.bindings import STORED_FLOATS
from moa_shared.errors import ConfigError, DiskFullError, MoaError, ModelSourceError
from moa_shared.models import ModelFiles
from moa_shared.models.network.network import Network
from moa_shared.models.network.served import (
    check_kernels,
    check_served,
    check_torch,
    has_torch,
    is_for_torch,
    is_plain_on_kernels,
    unsupported,
)
from moa_shared.models.storage.cache import cache_root, canonical_json
from moa_shared.models.tiles import map_tiles, plan_places, tile_file, tiles_in_memory
from moa_shared.models.weights import WeightReader
from moa_shared.programs.entry import install_extra
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import BF16, FLOAT32, INT8

from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.memory_check import map_in_large_pages, require_memory
from moa_server.verifier.startup_check import SelfTest, compare_tree, compare_with_float32, measure_times

if TYPE_CHECKING:
    from moa_server.verifier.group import Group

AUTO = "auto"
CUDA = "cuda"
TORCH_LEVELS = "Give --execution float32 or bf16, which torch computes."


def choose_level(settings: ServerSettings, config: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The level that the settings name; auto: int8 where the kernels run and compute the model, else bf16.

    Returns int8, float32 or bf16, and why `auto` is not int8; "": it is, or there is no need to say.
    """
    wanted: str = settings.execution
    if wanted == AUTO and settings.device == CUDA:
        wanted = BF16
    if wanted in (FLOAT32, BF16):
        if wanted == FLOAT32 and is_plain_on_kernels(config):
            check_served(config, name)
        else:
            check_torch(config, name)
        return wanted, ""
    if settings.device == CUDA:
        raise ConfigError("The level int8 is computed on CPUs only.", hint="Leave --device out, or --execution.")
    try:
        has_kernels = variant_name() != "numpy"  # on a machine that cannot run them
    except KernelError as error:
        raise ConfigError(str(error), hint=TORCH_LEVELS) from error
    if wanted == INT8:
        if not has_kernels:
            raise ConfigError(f"The level int8 needs kernels. {explain()}", hint=TORCH_LEVELS)
        check_kernels(config)
        return INT8, ""
    check_served(config, name)
    reason = explain()
    if has_kernels:
        try:
            check_kernels(config)
        except ModelSourceError as error:
            return BF16, error.message
        return INT8, ""
    if not has_torch():
        hint = f"Install torch: {install_extra('torch')}."
        raise ConfigError(f"This machine can run no level of execution. {reason}", hint=hint)
    check_torch(config, name)
    return BF16, reason


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Execution:
    """A target with the arithmetic that it runs in."""

    level: str
    target: Target
    details: str
    before: Callable[[], None]
    test: SelfTest | None = None  # what the test at the start has measured; None: torch is taken as it is
    device: str = "cpu"
    shares: int = 1  # processes that share the target: their number decides in which order their parts are added up
    kv: str = F16
    weights: str = ""  # what floats were packed as, where that is not what they usually are

    @property
    def exact(self) -> bool:
        return self.level == INT8

    def described(self) -> pb.Execution:
        return pb.Execution(level=self.level, exact=self.exact, details=self.details)

    def fingerprint(self, end_of_text: frozenset[int]) -> bytes:
        """sha256 of everything besides model, prompt and settings that a text depends on."""
        on_kernels = isinstance(self.target, KernelTarget)
        arithmetic = ARITHMETIC if on_kernels else f"torch {version('torch')} {self.device}"
        parts = [self.level, arithmetic, sorted(end_of_text), self.target.context_length]
        if self.shares > 1:
            parts.append(self.shares)
        if self.kv != F16:
            parts.append(self.kv)
        if self.weights:
            parts.append(self.weights)
        return hashlib.sha256(canonical_json(parts)).digest()


def load_execution(
    files: ModelFiles, settings: ServerSettings, progress: Progress, group: Group | None = None
) -> Execution:
    """The target on the level that the settings name. `group`: of processes that share it."""
    if group is not None and settings.execution not in (FLOAT32, BF16) and settings.device != CUDA:
        hint = "Give --execution float32 or bf16, or start moa-server without torchrun."
        raise ConfigError("The level int8 is computed in one process: its kernels do not share a target.", hint=hint)
    level, reason = choose_level(settings, files.config, files.target_id)
    if level == INT8:
        require_memory(files, settings, INT8)
        try:
            return _on_kernels(files, settings, progress)
        except MoaError as error:
            if settings.execution == INT8 or not (has_torch() and is_for_torch(files.config)):
                raise
            level, reason = BF16, error.message
    if level == FLOAT32 and is_plain_on_kernels(files.config):
        return _in_plain(files, settings, progress)
    if reason:
        log.warning("int8 kernels are not used: bf16 is several times slower, and its text is not exact", reason=reason)
    return _on_torch(files, settings, level, progress, group)


def _on_kernels(files: ModelFiles, settings: ServerSettings, progress: Progress) -> Execution:
    set_threads(settings.threads)
    trained = int(files.config["max_position_embeddings"])
    context = min(settings.context_length or trained, trained)
    reader = WeightReader(files)
    floats = _floats(reader, files, settings)
    weights, large_pages = _tiled(reader, files, settings, progress, floats)
    network = Network(weights, files.config, progress, context=context)
    target = KernelTarget(network, trained, settings.context_length or None, kv=settings.kv)
    with progress.task("Testing the kernels"):
        error = compare_with_float32(network, weights)
        compare_tree(KernelTarget(network.shortened(), trained))  # which the context may be too short for
        test = measure_times(KernelTarget(network, trained))
    costs = {"step_ms": round(test.step_ms, 1), "row_ms": round(test.row_ms, 2)}
    log.info("kernels ready", choice=explain(), **costs, error=round(error, 4), weights_in_large_pages=large_pages)
    details = f"{variant_name()}, {threads()} threads"
    if settings.kv != F16:
        details += f", keys and values as {settings.kv}"
    if floats != Q8_0:
        details += ", weights in 4 bits"
    packed = "" if floats == Q8_0 else floats
    return Execution(INT8, target, details, lambda: None, test, kv=settings.kv, weights=packed)


def _in_plain(files: ModelFiles, settings: ServerSettings, progress: Progress) -> Execution:
    """The reference in float32, which shares no pages: bits depend on what is computed together."""
    check_kv(settings.kv, FLOAT32)
    require_memory(files, settings, FLOAT32)
    set_threads(settings.threads)
    trained = int(files.config["max_position_embeddings"])
    network = Network(WeightReader(files), files.config, progress, plain=True, context=settings.context_length)
    target = KernelTarget(network, trained, settings.context_length or None, kv=F32)
    target.page_tokens = 0
    return Execution(FLOAT32, target, f"{variant_name()} in float32, {threads()} threads", lambda: None)


def check_kv(kv: str, level: str) -> None:
    """Refuses another form of keys and values than float16 where torch keeps them."""
    if kv != F16 and level != INT8:
        hint = "Leave --kv out, or give --execution int8."
        raise ConfigError(f"The level {level} does not keep keys and values as {kv}.", hint=hint)


def _floats(reader: WeightReader, files: ModelFiles, settings: ServerSettings) -> str:
    """What weights in floats are packed as; the log names formats that are converted, and should not be."""
    floats = Q4_1 if settings.weights == "q4" else Q8_0
    try:
        found = converted_formats(reader, floats)
    except KernelError as error:
        raise unsupported(error, files.config) from error
    if floats == Q4_1 and not found & {*STORED_FLOATS}:
        log.warning("--weights q4 changes nothing: the model has no weights in F16, BF16 or F32")
        floats = Q8_0
    for stored in sorted(found - {*STORED_FLOATS}):
        words = "the kernels lack a format of the file: its weights are served in 8 bits, with more memory and time"
        log.warning(words, format=stored.upper())
    return floats


def converted_formats(reader: WeightReader, floats: str) -> set[str]:
    """The formats of the file whose weights are packed as something else."""
    places = [(reader.format_of(place.name), place.kind) for place in plan_places(reader, floats)]
    return {stored for stored, kind in places if stored != kind}


def _tiled(
    reader: WeightReader, files: ModelFiles, settings: ServerSettings, progress: Progress, floats: str
) -> tuple[WeightReader, float | None]:
    """The weights packed, over a file in the cache with its share of large pages, or in memory if there is no room."""
    root = cache_root(settings.cache_dir)
    mapping = partial(map_tiles, files, root, progress, floats)
    try:
        try:
            tiles, large_pages = map_in_large_pages(tile_file(files, root, floats=floats), mapping)
            return reader.with_tiles(tiles), large_pages
        except (DiskFullError, ConfigError, OSError) as error:
            reason = error.message if isinstance(error, MoaError) else str(error)
            log.warning("packed weights are kept in memory, and packed again at the next start", reason=reason)
            return reader.with_tiles(tiles_in_memory(files, progress, floats)), None
    except KernelError as error:
        raise unsupported(error, files.config) from error


def _on_torch(
    files: ModelFiles, settings: ServerSettings, level: str, progress: Progress, group: Group | None = None
) -> Execution:
    if not has_torch():
        hint = f"Install torch: {install_extra('torch')}."
        raise ConfigError(f"The level {level} is computed by torch, which is not installed.", hint=hint)
    import torch

    from moa_server.verifier.torch_target import load_torch_target

    def before() -> None:  # OpenMP counts threads for each calling thread
        if settings.threads:
            torch.set_num_threads(settings.threads)

    check_kv(settings.kv, level)
    before()
    target = load_torch_target(files, settings, level, progress, group)
    if level == BF16:
        log.warning("bf16 rounds differently with what is verified together: a text may change with the drafts")
    device = target.device.type
    details = target.details if device == CUDA else f"{target.details}, {torch.get_num_threads()} threads"
    return Execution(level, target, details, before, device=device, shares=group.rank.count if group is not None else 1)
