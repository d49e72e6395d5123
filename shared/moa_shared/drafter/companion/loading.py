"""Loads a companion: a GGUF file, a folder or a hub id, computed by the kernels over packed weights that are mapped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from moa_kernels import F16, F32, Cache, KernelError, variant_name

from moa_shared.drafter.companion.known import recall_agreement
from moa_shared.drafter.kinds.companion import CompanionState
from moa_shared.drafter.layers.arithmetic import INT8
from moa_shared.drafting.confidence import Agreement
from moa_shared.errors import ConfigError, DiskFullError, MismatchError, ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.models.network.layers import Weights
from moa_shared.models.network.network import Network
from moa_shared.models.network.served import check_kernels
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.models.weights.tile_file import TiledWeights, map_tiles, tiles_in_memory
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.text.plain_text import plain_line

_MOST_SHOWN = 40  # characters of a token in a message
_HINT = "Choose a small model of the target's own family (docs/drafters.md#a-companion)."


@dataclass(frozen=True, slots=True)
class Companion:
    """A small model beside a target."""

    files: ModelFiles
    tokenizer: Tokenizer
    network: Network
    columns: int
    kv: str = F16
    weights_bytes: int = 0
    agreement: Agreement = field(default_factory=Agreement)

    @property
    def name(self) -> str:
        return self.files.target_id

    @property
    def fingerprint(self) -> str:
        """Of configuration and weights, hexadecimal."""
        return self.files.fingerprint

    @property
    def context_tokens(self) -> int:
        return int(self.files.config.get("max_position_embeddings") or 1 << 31)

    def new_state(self) -> CompanionState:
        return CompanionState(self.network, self.columns, kv=self.kv)

    def new_cache(self) -> Cache:
        return self.network.new_cache(kv=self.kv)

    def beside(self, target: ModelFiles, cache_dir: Path | None = None) -> Companion:
        """The same model as companion of a target, of which only the tokenizer is read."""
        columns = _columns_for(target, self.files, self.tokenizer)
        agreement = recall_agreement(cache_root(cache_dir), self.fingerprint, target.fingerprint)
        return replace(self, columns=columns, agreement=agreement)


def find_companion(spec: str, cache_dir: Path | None = None, progress: Progress | None = None) -> ModelFiles:
    """The files of a companion, fetched if need be.

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
        target: of which only the tokenizer is read; its own files: it writes for itself.
        weights: "int8", or "float32" for a reference.

    Raises:
        MismatchError: it has another vocabulary.
        ModelSourceError: it cannot be read or computed.
    """
    progress = progress or SilentProgress()
    tokenizer = load_tokenizer(files)
    columns = _columns_for(target, files, tokenizer)  # before the weights are packed, which takes time
    packed = _weights(files, cache_dir, progress, weights)
    size = sum(each.memory.nbytes for each in packed.tiles.values()) if isinstance(packed, TiledWeights) else 0
    try:
        network = Network(packed, files.config, plain=weights != INT8)
    except ModelSourceError as error:
        raise _unusable(files, error) from error
    agreement = recall_agreement(cache_root(cache_dir), files.fingerprint, target.fingerprint)
    return Companion(files, tokenizer, network, columns, F16 if weights == INT8 else F32, size, agreement)


def _columns_for(target: ModelFiles, files: ModelFiles, tokenizer: Tokenizer) -> int:
    """How many of a companion's logits are tokens of the target, whose vocabulary must be its own."""
    if files.tokenizer_hash == target.tokenizer_hash:
        return token_count(tokenizer)
    theirs = load_tokenizer(target)
    check_vocabulary(tokenizer, theirs, files.target_id, target.target_id)
    return token_count(theirs)


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


def check_vocabulary(companion: Tokenizer, target: Tokenizer, name: str, target_name: str) -> None:
    """Refuses a companion to which an id means another token than to the target.

    What only the companion has beyond the target's tokens is never said, and rows that only pad a vocabulary to a round
    size are no tokens, also where a GGUF file spells them ([PAD151669]).
    """
    theirs, ours = _tokens(target), _tokens(companion)
    for number, token in theirs.items():
        own = ours.get(number)
        if own != token:
            raise MismatchError(
                f"{name} cannot be a companion of {target_name}: token {number} is {_words(token)} there and"
                f" {_words(own)} here.",
                hint=_HINT,
            )


def token_count(target: Tokenizer) -> int:
    """How many ids may be tokens of the target: the largest, and one; rows of its head beyond are padding."""
    return max(_tokens(target), default=-1) + 1


def _tokens(tokenizer: Tokenizer) -> dict[int, tuple[str, bool]]:
    """By id, in order: how a token is spelled, and whether it is a special one."""
    special = set(tokenizer.special_tokens.values())
    spelled = sorted((number, text) for text, number in tokenizer.vocabulary.items())
    return {number: (text, number in special) for number, text in spelled if text != f"[PAD{number}]"}


def _words(token: tuple[str, bool] | None) -> str:
    if token is None:
        return "none"
    text, is_special = token
    return f"{'the special token ' if is_special else ''}{plain_line(repr(text), _MOST_SHOWN)}"
