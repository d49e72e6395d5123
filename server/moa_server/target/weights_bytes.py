"""How many bytes a model's weights come to take in memory. Reads the heads of its files only."""

from __future__ import annotations

import math

from moa_kernels import FORMATS, Q4_1, Q8_0
from moa_kernels.bindings import STORED_FLOATS
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS
from moa_shared.protocol.levels import FLOAT32, INT8

PROCESS_BYTES = 150_000_000  # of a server of a tiny model: Python, gRPC, the tokenizer (measured; 85 MB of it files)


def weights_nbytes(files: ModelFiles, level: str, weights: str = "q8") -> int:
    """The bytes of the weights on a level, with floats in 8 or 4 bits where the level packs them.

    Raises:
        ModelSourceError: a file cannot be read.
    """
    reader = WeightReader(files)
    total, names = 0.0, reader.names()
    for name in names:
        shape = reader.shape(name)
        numbers = math.prod(shape)
        if level != INT8:
            total += numbers * (4 if level == FLOAT32 else 2)
        elif len(shape) < 2:
            total += 4 * numbers
        elif name != LAYER_EMBEDDINGS and (name != EMBEDDINGS or HEAD not in names):  # these are looked up in the file
            kind = reader.format_of(name)
            is_float = kind in STORED_FLOATS and weights == "q4" and name not in (EMBEDDINGS, HEAD)
            stored = FORMATS.get(kind, FORMATS[Q4_1 if is_float else Q8_0])  # as plan_places decides
            total += numbers * stored.size / stored.values
    return int(total)
