"""What a GGUF model is known by: a hash of its headers and of samples of each tensor, without reading gigabytes.

The same on every machine, whatever the files are called and wherever they lie (docs/adr/0040-models-are-mapped.md).
Invariant: equal models have equal identities; a model that was trained, merged or quantised differently has another.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.generation import SMOLLM2_135M_INSTRUCT
from moa_shared.models.gguf.header import DAMAGED, GgufHeader

_SAMPLE_BYTES = 4096
_SAMPLES = 8  # of a tensor: the first and the last bytes, and six places at equal distances between them
# The default model, whose drafters and tables are bound to the sha256 of all its bytes.
_BOUND_SAMPLED = "af1d1826a4ecd03982385dbf4d1952b42baa47836461442311c079f3a46a4ca4"
_BOUND_WHOLE = SMOLLM2_135M_INSTRUCT


def identify(headers: Sequence[GgufHeader]) -> str:
    """The identity (hex) of a model, given the headers of its files in order.

    Raises:
        ModelSourceError: a file cannot be read, or has shrunk since its header was read.
    """
    digest = hashlib.sha256(f"moa-gguf-1 {len(headers)}\n".encode())
    for header in headers:
        try:
            with header.path.open("rb", buffering=0) as file:
                digest.update(f"{header.size} {os.fstat(file.fileno()).st_size}\n".encode())
                for start, size in _ranges(header):
                    file.seek(start)
                    taken = file.read(size)
                    if len(taken) != size:
                        raise ValueError(f"it ends at byte {start + len(taken)}")
                    digest.update(taken)
        except (OSError, ValueError) as error:
            raise ModelSourceError(f"The GGUF file {header.path} cannot be read ({error}).", hint=DAMAGED) from error
    sampled = digest.hexdigest()
    return _BOUND_WHOLE if sampled == _BOUND_SAMPLED else sampled


def _ranges(header: GgufHeader) -> Iterator[tuple[int, int]]:
    """Start and size of what is hashed."""
    yield 0, header.size
    for tensor in header.tensors.values():
        if tensor.size <= _SAMPLES * _SAMPLE_BYTES:
            yield tensor.offset, tensor.size
            continue
        last = tensor.size - _SAMPLE_BYTES
        for place in range(_SAMPLES):
            yield tensor.offset + last * place // (_SAMPLES - 1), _SAMPLE_BYTES
