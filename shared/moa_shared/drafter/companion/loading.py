"""Loads a companion: a GGUF file, a folder or a hub id, computed by the kernels over packed weights that are mapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moa_kernels import F16, F32, KernelError, variant_name

from moa_shared.drafter.companion.state import CompanionState
from moa_shared.drafter.companion.vocabulary import check_vocabulary, token_count
from moa_shared.drafter.layers.arithmetic import INT8
from moa_shared.errors import ConfigError, DiskFullError, ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.models.network.layers import Weights
from moa_shared.models.network.network import Network
from moa_shared.models.network.served import check_kernels
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.models.weights.tile_file import TiledWeights, map_tiles, tiles_in_memory
from moa_shared.programs.progress import Progress, SilentProgress


@dataclass(frozen=True, slots=True)
class Companion:
    """A small model beside a target.

    Args:
        files: the model's.
        tokenizer: its own, with its chat template.
        context_tokens: the longest text that it can read.
        weights_bytes: of its packed weights, which all processes that hold it share.
        new_state: makes a conversation's empty state.
    """

    files: ModelFiles
    tokenizer: Tokenizer
    context_tokens: int
    weights_bytes: int
    new_state: Callable[[], CompanionState]

    @property
    def name(self) -> str:
        return self.files.target_id

    @property
    def fingerprint(self) -> str:
        """Of configuration and weights, hexadecimal."""
        return self.files.fingerprint


def find_companion(spec: str, cache_dir: Path | None = None, progress: Progress | None = None) -> ModelFiles:
    """The files of a companion, fetched if need be.

    Args:
        spec: as of `resolve`.

    Raises:
        ModelSourceError: it is of a kind that the kernels do not compute.
        MoaError: as of `resolve`.
    """
    files = resolve(spec, cache_dir, progress)
    try:
        check_kernels(files.config)
    except ModelSourceError as error:
        raise _unusable(files, error) from error
    return files


def load_companion(
    files: ModelFiles,
    target: ModelFiles,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    *,
    weights: str = INT8,
) -> Companion:
    """A companion for a target.

    Args:
        files: its own, of `find_companion`.
        target: of which only the tokenizer is read.
        weights: "int8", or "float32" for a reference.

    Raises:
        MismatchError: it has another vocabulary.
        ModelSourceError: it cannot be read or computed.
    """
    progress = progress or SilentProgress()
    own = load_tokenizer(files)
    theirs = own
    if files.tokenizer_hash != target.tokenizer_hash:
        theirs = load_tokenizer(target)
        check_vocabulary(own, theirs, files.target_id, target.target_id)
    columns, trained = token_count(theirs), int(files.config.get("max_position_embeddings") or 1 << 31)
    packed = _weights(files, cache_dir, progress, weights)
    size = sum(each.memory.nbytes for each in packed.tiles.values()) if isinstance(packed, TiledWeights) else 0
    try:
        network = Network(packed, files.config, progress, plain=weights != INT8)
    except ModelSourceError as error:
        raise _unusable(files, error) from error
    kv = F16 if weights == INT8 else F32
    return Companion(files, own, trained, size, lambda: CompanionState(network, columns, kv=kv))


def _weights(files: ModelFiles, cache_dir: Path | None, progress: Progress, weights: str) -> Weights:
    """Packed in a file of the cache and mapped; in memory where that file cannot be written."""
    reader = WeightReader(files)
    if weights != INT8 or variant_name() == "numpy":
        return reader
    try:
        try:
            return TiledWeights(reader, map_tiles(files, cache_root(cache_dir), progress))
        except (DiskFullError, ConfigError, OSError):
            return TiledWeights(reader, tiles_in_memory(files, progress))
    except KernelError as error:
        raise _unusable(files, error) from error


def _unusable(files: ModelFiles, error: KernelError | ModelSourceError) -> ModelSourceError:
    why = error.message if isinstance(error, ModelSourceError) else error
    return ModelSourceError(
        f"{files.target_id} cannot be a companion. {why}", hint="Choose another model (docs/drafters.md#a-companion)."
    )
