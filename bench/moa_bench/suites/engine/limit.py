"""The memory limit: a step cannot be faster than reading the bytes that it needs, at what one core reads a second."""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_shared.models import ModelFiles
from moa_shared.programs.elapsed import ms_since

Floats = npt.NDArray[np.float32]
READ_BYTES = 1 << 28  # far beyond every cache of a processor
READING = "reading memory"


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a plain step reads."""

    weights: int  # bytes of all layers and the head, as they are in the file; of experts, those that a token goes to
    position: int  # bytes of keys and values of one position, in float16

    def at(self, context: int) -> int:
        return self.weights + context * self.position


def step_bytes(files: ModelFiles) -> StepBytes:
    from moa_kernels import F16
    from moa_shared.models.network.layer_sizes import cached_heads
    from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS, WeightReader, idle_experts_nbytes

    reader = WeightReader(files)
    read = [name for name in reader.names() if name not in (EMBEDDINGS, HEAD, LAYER_EMBEDDINGS)]
    weights = sum(map(reader.stored_bytes, [*read, HEAD])) - idle_experts_nbytes(files)
    return StepBytes(weights, sum(heads.nbytes(F16) for heads in cached_heads(files.config)))


def make_array() -> Floats:
    return np.ones(READ_BYTES // 4, np.float32)


def time_reading(array: Floats) -> float:
    """Milliseconds of reading an array once: a dot product with itself, which is bound by memory."""
    began = time.perf_counter()
    np.dot(array, array)
    return ms_since(began)
