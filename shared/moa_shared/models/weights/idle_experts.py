"""What a plain step leaves unread of a mixture of experts: those that its token does not go to. Reads headers only."""

from __future__ import annotations

from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.weights.weights import WeightReader

_COUNTS = ("num_experts", "num_local_experts")
_CHOSEN = ("num_experts_per_tok", "top_k_experts")
_EXPERTS = ".experts."  # in the names of their tensors


def idle_experts_nbytes(files: ModelFiles) -> int:
    """Bytes of a model's file that a step of one row does not read; 0: it has no experts.

    Raises:
        ModelSourceError: a file cannot be read.
    """
    count = next((int(files.config[key]) for key in _COUNTS if files.config.get(key)), 0)
    chosen = next((int(files.config[key]) for key in _CHOSEN if files.config.get(key)), count)
    if chosen >= count:
        return 0
    reader = WeightReader(files)
    held = sum(reader.stored_bytes(name) for name in reader.names() if _EXPERTS in name)
    return held * (count - chosen) // count
