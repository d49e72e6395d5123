"""Makes a device's drafters: over a checkpoint's weights and parts of the target, or over a companion's weights.

The target's parts are packed in a file that all processes of the device map; drafters compute the same bits with it and
without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moa_kernels import KernelError, variant_name
from moa_shared.constraints import constraint_compiler
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.checkpoint.statistics import confidence_for, ngrams_for
from moa_shared.drafter.companion import Companion
from moa_shared.drafter.kinds.config import NewState
from moa_shared.drafter.layers.weights import DRAFT_IDS, INT8, TargetParts
from moa_shared.drafting.confidence import LearnedConfidence
from moa_shared.drafting.dynamic_tree import TreeShape, draft_chain, draft_tree
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.drafting.growing import CHAIN, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.errors import ConfigError, DiskFullError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.files import end_of_text
from moa_shared.models.weights.parts import layer_names
from moa_shared.models.weights.tile_file import TiledWeights, map_some_tiles
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD
from moa_shared.programs.progress import SilentProgress

from moa_client.drafting.companion import CompanionDrafter
from moa_client.drafting.drafters import ClientDrafter, ConversationForms, DeviceForms, MoaDrafter, Recipe
from moa_client.settings import ClientSettings

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler


def target_parts(
    reader: WeightReader, files: ModelFiles, checkpoints: Sequence[Checkpoint], settings: ClientSettings, context: int
) -> TargetParts:
    """The parts of the target that these drafters run: packed in the cache and mapped, so that processes share them.

    Where they cannot be packed there, each process packs its own in memory.

    `context`: the most tokens of a conversation at the server.
    """
    drafters = [each for each in checkpoints if each.config.traits.maps_target]
    reused = max((each.config.reused_layers for each in drafters), default=0)
    names = {name for name in layer_names(files, reused) if name.startswith("model.layers.")}
    if any(DRAFT_IDS not in each.tensors for each in drafters):
        names.add(HEAD if HEAD in reader.names() else EMBEDDINGS)
    matrices = sorted(name for name in names if len(reader.shape(name)) == 2)
    if not matrices or settings.dtype != INT8 or variant_name() == "numpy":
        return TargetParts(reader, context=context)
    try:
        tiles = map_some_tiles(files, cache_root(settings.cache_dir), matrices, SilentProgress())
    except (KernelError, ConfigError, DiskFullError, OSError):  # sizes that numpy computes, or a disk without room
        return TargetParts(reader, context=context)
    return TargetParts(reader, TiledWeights(reader, tiles), context)


def named_checkpoint(path: Path, files: ModelFiles) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    if checkpoint.config.target_fingerprint not in ("", files.fingerprint):
        raise MismatchError(
            "target that the drafter was trained for",
            files.fingerprint[:12],
            checkpoint.config.target_fingerprint[:12],
            hint="Give a drafter that was trained for this target, or --drafter none.",
        )
    return checkpoint


def checkpoint_drafters(
    checkpoint: Checkpoint,
    states: NewState,
    files: ModelFiles,
    settings: ClientSettings,
    *,
    reads_memory: bool,
    path: Path | None = None,
    trial: DrafterTrial | None = None,
) -> Callable[[], ClientDrafter]:
    """Makes drafters over one checkpoint's weights, which share a trial."""
    ngrams = ngrams_for(files.fingerprint, path) if settings.copies else None
    confidence = confidence_for(checkpoint.fingerprint, path) if checkpoint.fingerprint else None
    shape = _growth_shape(settings)
    forms = DeviceForms(partial(_new_compiler, files))

    def new_drafter() -> ClientDrafter:
        guesser = TextGuesser(ngrams) if settings.copies else None
        recipe = _recipe(settings, guesser)
        return MoaDrafter(
            states,
            recipe,
            reads_memory=reads_memory,
            shape=shape,
            guesser=guesser,
            confidence=confidence,
            forms=ConversationForms(forms),
            trial=trial,
        )

    return new_drafter


def companion_drafters(
    companion: Companion,
    files: ModelFiles,
    settings: ClientSettings,
    confidence: LearnedConfidence | None,
    *,
    drafts: bool = True,
) -> Callable[[], CompanionDrafter]:
    """Makes drafters over the companion's weights. `drafts`: also for a server that answers."""
    ngrams = ngrams_for(files.fingerprint) if settings.copies else None
    forms = DeviceForms(partial(_new_compiler, files))

    def new_drafter() -> CompanionDrafter:
        guesser = TextGuesser(ngrams) if settings.copies else None
        return CompanionDrafter(
            companion,
            _recipe(settings, guesser),
            shape=_growth_shape(settings),
            guesser=guesser,
            confidence=confidence,
            forms=ConversationForms(forms),
            drafts=drafts,
        )

    return new_drafter


def _growth_shape(settings: ClientSettings) -> GrowthShape:
    return CHAIN if settings.mode == "chain" else GrowthShape(breadth=settings.breadth)


def _new_compiler(files: ModelFiles) -> ConstraintCompiler | None:
    tokenizer = load_tokenizer(files)
    ends = end_of_text(files, tokenizer.eos_token_id)
    return constraint_compiler(tokenizer, int(files.config["vocab_size"]), ends, tries=False)


def drafter_states(checkpoint: Checkpoint, files: ModelFiles, settings: ClientSettings, context: int = 0) -> NewState:
    """The factory of a conversation's draft state, over the parts of the target in `files`.

    `context`: the most tokens of a conversation at the server; 0: as many as the model was made for.
    """
    reader = WeightReader(files)
    parts = target_parts(reader, files, (checkpoint,), settings, context)
    states = checkpoint.states(reader, settings.dtype, parts=parts)
    reader.drop_pages()
    return states


def _recipe(settings: ClientSettings, guesser: TextGuesser | None) -> Recipe:
    if settings.mode == "chain":
        return lambda state, sampling: draft_chain(state, settings.length, sampling, guesser)
    shape = TreeShape(settings.depth, settings.breadth, settings.nodes)
    return lambda state, sampling: draft_tree(state, shape, sampling, guesser)[0]
