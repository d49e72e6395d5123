"""How many bytes a model's weights come to take in memory. Reads the heads of its files only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moa_kernels import FORMATS, Q4_1, Q8_0
from moa_kernels.bindings import STORED_FLOATS
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.weights.idle_experts import idle_share, is_of_experts
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS
from moa_shared.protocol.levels import FLOAT32, INT8

PROCESS_BYTES = 150_000_000  # of a server of a tiny model: Python, gRPC, the tokenizer (measured; 85 MB of it files)


@dataclass(frozen=True, slots=True)
class WeightsBytes:
    """What a model's weights take.

    Args:
        total: all of them, in bytes.
        idle: those of experts that a step of one row does not read; 0: the model has no experts.
    """

    total: int
    idle: int = 0


def weights_nbytes(files: ModelFiles, level: str, weights: str = "q8") -> WeightsBytes:
    """The bytes of the weights on a level, with floats in 8 or 4 bits where the level packs them.

    Raises:
        ModelSourceError: a file cannot be read.
    """
    reader = WeightReader(files)
    total = experts = 0.0
    for name in reader.names():
        nbytes = _served_bytes(reader, name, level, weights)
        total += nbytes
        if is_of_experts(name):
            experts += nbytes
    return WeightsBytes(int(total), int(idle_share(files.config) * int(experts)))


def _served_bytes(reader: WeightReader, name: str, level: str, weights: str) -> float:
    shape = reader.shape(name)
    numbers = math.prod(shape)
    if level != INT8:
        return numbers * (4 if level == FLOAT32 else 2)
    if len(shape) < 2:
        return 4 * numbers
    if name == LAYER_EMBEDDINGS or (name == EMBEDDINGS and HEAD in reader.names()):  # looked up in the file
        return 0
    kind = reader.format_of(name)
    is_float = kind in STORED_FLOATS and weights == "q4" and name not in (EMBEDDINGS, HEAD)
    stored = FORMATS.get(kind, FORMATS[Q4_1 if is_float else Q8_0])  # as plan_places decides
    return numbers * stored.size / stored.values
