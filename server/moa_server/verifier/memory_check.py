"""What a model takes, from the heads of its files, and whether memory holds it; in which pages its weights lie."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import structlog
from moa_kernels import F16, F32, Q4_1, Q8_0, Cache, KernelError, populate
from moa_shared.errors import ConfigError, InternalError
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.network.plan import cached_heads, state_shapes
from moa_shared.models.network.served import unsupported
from moa_shared.models.storage.tensors import EMBEDDINGS, LAYER_EMBEDDINGS, is_of_expert, map_file
from moa_shared.models.tiles import plan_places
from moa_shared.models.weights import idle_share
from moa_shared.programs.machine import FreeMemory, free_memory
from moa_shared.sampling.settings import BF16, FLOAT32, INT8
from rich.filesize import decimal

from moa_server.settings import ServerSettings
from moa_server.verifier.kernel_target import KernelCache
from moa_server.verifier.target import KV_SHARE, Rows, Target

if TYPE_CHECKING:
    from moa_shared.drafter.checkpoint import Checkpoint

T = TypeVar("T")

PROCESS_BYTES = 150_000_000  # of a server of a tiny model: Python, gRPC, the tokenizer (measured; 85 MB of it files)


@dataclass(frozen=True, slots=True)
class Needed:
    """The memory that is taken before anybody talks to the server, in bytes, besides the program's own."""

    weights: int
    idle: int = 0  # of experts that a step of one row does not read: they are mapped, and the system may drop them
    drafters: int = 0

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


def needed_memory(files: ModelFiles, level: str, weights: str = "q8", drafters: int = 0) -> Needed:
    """What a model takes on a level, with floats in 8 or 4 bits where that packs them; `drafters`: bytes of theirs."""
    reader, sizes = WeightReader(files), dict[str, int]()
    if level == INT8:  # the rest of the matrices is looked up in the file
        sizes = {EMBEDDINGS: 0, LAYER_EMBEDDINGS: 0}
        try:
            sizes |= {each.name: each.nbytes for each in plan_places(reader, Q4_1 if weights == "q4" else Q8_0)}
        except KernelError as error:
            raise unsupported(error, files.config) from error
    for name in reader.names():
        sizes.setdefault(name, math.prod(reader.shape(name)) * (2 if level == BF16 else 4))
    experts = sum(nbytes for name, nbytes in sizes.items() if is_of_expert(name))
    idle = int(idle_share(files.config) * experts) if level == INT8 else 0
    return Needed(sum(sizes.values()), idle, drafters)


def _computes_nothing(*_: object, **__: object) -> NoReturn:
    raise InternalError("A target without weights was asked to compute.")


class SizedTarget(Target):
    """The sizes of a target. `kv`: how the level int8 keeps keys and values: one of `moa_kernels.KV_FORMATS`."""

    normed = _run = _computes_nothing

    def __init__(
        self, config: Mapping[str, Any], level: str, context_length: int | None = None, *, kv: str = F16
    ) -> None:
        vocab_size, hidden_size, layers = config["vocab_size"], config["hidden_size"], config["num_hidden_layers"]
        super().__init__(vocab_size, hidden_size, layers, int(config["max_position_embeddings"]), context_length)
        kept = F32 if level == FLOAT32 else kv
        self._make_cache = partial(Cache, cached_heads(config), kv=kept, states=state_shapes(config))

    def new_cache(self) -> KernelCache:
        """One that is asked for sizes alone: it takes no memory until it has rows."""
        return KernelCache(self._make_cache())

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return _computes_nothing


log = structlog.get_logger()

LEAST_TOKENS = 1024  # of one conversation, where the operator gives keys and values no bytes of their own


def require_memory(files: ModelFiles, settings: ServerSettings, level: str, free: FreeMemory | None = None) -> None:
    """Refuses a model that the memory does not hold; packed weights count, though mapped, as each step reads them.

    `free`: None: what can be had now.
    """
    if not settings.memory_check:
        return
    free = free or free_memory()
    target = SizedTarget(files.config, level, settings.context_length or None)
    cache = target.new_cache()
    least = cache.most_nbytes(min(LEAST_TOKENS, target.context_length), settings.draft_nodes)
    needed, rows = needed_memory(files, level, settings.weights), settings.kv_bytes or least
    read = needed.weights - needed.idle
    if needed.total + rows <= free.nbytes:
        return
    if needed.least + rows <= free.nbytes:
        log.warning(
            "memory does not hold all experts: the others are read from the disk when a token goes to them",
            weights_bytes=needed.weights,
            read_each_step_bytes=read,
            free_bytes=free.nbytes,
        )
        return
    limit = f", under a limit of {decimal(free.limit)}" if free.limit is not None else ""
    whole = f" (of {decimal(needed.weights)}: the experts that one token goes to, and all else)" if needed.idle else ""
    kept = "keys, values and recurrent states" if cache.checkpoint_nbytes else "keys and values"
    hint = "lower --kv-bytes, " if settings.kv_bytes > least else ""
    raise ConfigError(
        f"{files.target_id} needs {decimal(needed.least + rows)} of memory: {decimal(read)} for its weights{whole}, "
        f"{decimal(rows)} for {kept}, {decimal(PROCESS_BYTES)} for the program. {decimal(free.nbytes)} can be "
        f"had here{limit}.",
        hint=f"End other programs, {hint}or take a smaller model or one with fewer bits a weight; "
        "--no-memory-check starts all the same, and reads weights from the disk again and again.",
    )


# Of a step's weights: a row took 10 to 12 ms with 0.06 of them in pages of 2 MiB, 7.2 to 7.7 with 0.6, 5.9 with all.
ENOUGH_LARGE = 0.8
TRIAL_BYTES = 1 << 25  # read first, as some systems have no such pages for files, or none left; less is not worth it


class MappedPages(NamedTuple):
    """How a process maps files, in bytes: all that is in memory, in large pages, and mapped by other processes too."""

    nbytes: int
    large: int
    shared: int

    @property
    def large_share(self) -> float:
        return round(self.large / max(1, self.nbytes), 2)


def mapped_pages(end: str, process: int | str = "self") -> MappedPages | None:
    """Of the files whose paths end so; None where the system does not say, or the process maps none."""
    try:
        lines = Path(f"/proc/{process}/smaps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    sizes, is_wanted = Counter[str](), False
    for line in lines:
        name, _, value = line.partition(":")
        if " " in name:  # the first line of a mapping: addresses, rights, place, and the file
            is_wanted = line.endswith(end)
        elif is_wanted and value.endswith(" kB"):
            sizes[name] += 1024 * int(value.split()[0])
    shared = sizes["Shared_Clean"] + sizes["Shared_Dirty"]
    return MappedPages(sizes["Rss"], sizes["FilePmdMapped"], shared) if sizes else None


def map_in_large_pages(path: Path, map_file_tiles: Callable[[], T]) -> tuple[T, float | None]:
    """What is mapped of a file, read anew where that helps and nobody else maps it, and the share in large pages."""
    mapped, pages = map_file_tiles(), mapped_pages(str(path))
    if pages and pages.nbytes >= TRIAL_BYTES and pages.large_share < ENOUGH_LARGE and not pages.shared:
        del mapped  # as the system keeps what is mapped
        _read_anew(path)
        mapped, pages = map_file_tiles(), mapped_pages(str(path))
    return mapped, pages.large_share if pages else None


def _read_anew(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, TRIAL_BYTES, os.POSIX_FADV_DONTNEED)
        populate(map_file(path, large_pages=True)[:TRIAL_BYTES])
        pages = mapped_pages(str(path))
        if pages and pages.large_share >= ENOUGH_LARGE:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
