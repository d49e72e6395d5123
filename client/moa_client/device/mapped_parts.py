"""The target's parts that a device's drafters run, packed in a file that all processes of the device map.

State: none beyond that file. Invariant: drafters compute the same bits with it and without.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_kernels import KernelError, variant_name
from moa_shared.drafter import Checkpoint
from moa_shared.drafter.checkpoint.config import MOA
from moa_shared.drafter.checkpoint.weights import DRAFT_IDS
from moa_shared.drafter.layers.arithmetic import INT8
from moa_shared.drafter.layers.target_parts import TargetParts
from moa_shared.errors import ConfigError, DiskFullError
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.weights.parts import layer_names
from moa_shared.models.weights.tile_file import TiledWeights, map_some_tiles
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD
from moa_shared.programs.progress import SilentProgress

from moa_client.settings import ClientSettings


def target_parts(
    reader: WeightReader, files: ModelFiles, checkpoints: Sequence[Checkpoint], settings: ClientSettings, context: int
) -> TargetParts:
    """The parts of the target that these drafters run: packed in the cache and mapped, so that processes share them.

    Where they cannot be packed there, each process packs its own in memory.

    Args:
        context: the most tokens of a conversation at the server.
    """
    drafters = [each for each in checkpoints if each.config.kind == MOA]
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
