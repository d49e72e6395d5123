"""How many bytes a model's weights come to take in memory. Reads the heads of its files only."""

from __future__ import annotations

import math

from moa_kernels.blocks import BLOCK_BYTES, GROUP
from moa_shared.models import ModelFiles, WeightReader
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD
from moa_shared.protocol.levels import FLOAT32, INT8

PROCESS_BYTES = 150_000_000  # of a server of a tiny model: Python, gRPC, the tokenizer (measured; 85 MB of it files)
FOUR_BITS = "q4_1"
EIGHT_BITS = "q8_0"  # also what floats become


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
            kind = FOUR_BITS if reader.format_of(name) == FOUR_BITS else EIGHT_BITS
            total += numbers * BLOCK_BYTES[kind] / GROUP
    return int(total)
