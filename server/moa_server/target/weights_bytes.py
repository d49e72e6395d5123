"""How many bytes a model's weights come to take in memory. Reads the heads of its files only."""

from __future__ import annotations

import math

from moa_kernels import FORMATS, Q8_0
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD
from moa_shared.protocol.levels import FLOAT32, INT8

PROCESS_BYTES = 150_000_000  # of a server of a tiny model: Python, gRPC, the tokenizer (measured; 85 MB of it files)


def weights_nbytes(files: ModelFiles, level: str) -> int:
    """The bytes of the weights on a level.

    Raises:
        ModelSourceError: a file cannot be read.
    """
    reader = WeightReader(files)
    total = 0.0
    for name in reader.names():
        shape = reader.shape(name)
        numbers = math.prod(shape)
        if level != INT8:
            total += numbers * (4 if level == FLOAT32 else 2)
        elif len(shape) < 2:
            total += 4 * numbers
        elif name != EMBEDDINGS or HEAD not in reader.names():  # else looked up in the file
            stored = FORMATS.get(reader.format_of(name), FORMATS[Q8_0])  # what the kernels do not take becomes 8 bits
            total += numbers * stored.size / stored.values
    return int(total)
