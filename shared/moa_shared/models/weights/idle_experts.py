"""What a plain step leaves unread of a mixture of experts: those that its token does not go to. Reads headers only."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.weights.weights import WeightReader

_COUNTS = ("num_experts", "num_local_experts")
_CHOSEN = ("num_experts_per_tok", "top_k_experts")
_EXPERTS = ".experts."  # in the names of their tensors


def idle_share(config: Mapping[str, Any]) -> Fraction:
    """The part of all experts that a step of one row does not read; 0: the model has none."""
    count = next((int(config[key]) for key in _COUNTS if config.get(key)), 0)
    chosen = next((int(config[key]) for key in _CHOSEN if config.get(key)), count)
    return Fraction(count - chosen, count) if chosen < count else Fraction(0)


def is_of_experts(name: str) -> bool:
    """Whether a tensor is one of experts, by the name by which it is served."""
    return _EXPERTS in name


def idle_experts_nbytes(files: ModelFiles) -> int:
    """Bytes of a model's file that a step of one row does not read; 0: it has no experts.

    Raises:
        ModelSourceError: a file cannot be read.
    """
    share = idle_share(files.config)
    if not share:
        return 0
    reader = WeightReader(files)
    return int(share * sum(reader.stored_bytes(name) for name in reader.names() if is_of_experts(name)))
