"""Files of n-grams: what a target usually says after its last tokens, as safetensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.checkpoint.shipped import NGRAMS_TARGET_KEY, find_ngrams
from moa_shared.drafter.checkpoint.writing import whole_checkpoint
from moa_shared.drafting.guesses.ngrams import LONGEST_CONTEXT, NgramTable
from moa_shared.errors import CheckpointError
from moa_shared.models.tensors.safetensors import map_tensors, write_tensors

_TYPES = {"contexts": "I32", "counts": "U8", "tokens": "I32", "chances": "U8"}


@dataclass(frozen=True, slots=True)
class NgramArrays:
    """The arrays of an `NgramTable`, in its order."""

    contexts: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]
    chances: npt.NDArray[np.uint8]


def ngrams_for(target_fingerprint: str, drafter: Path | None = None) -> NgramTable | None:
    """The table for a target: the one beside a drafter, else the package's; None: there is none.

    Raises:
        CheckpointError: the file cannot be used.
        ModelSourceError: it cannot be read.
    """
    path = find_ngrams(target_fingerprint, drafter)
    return load_ngrams(path) if path is not None else None


def load_ngrams(path: Path) -> NgramTable:
    """Reads a table.

    Raises:
        CheckpointError: no such file, or one that holds no table.
        ModelSourceError: it cannot be read.
    """
    if not path.is_file():
        raise CheckpointError(f"There is no table of n-grams at {path}.", hint="Make one with moa-train ngrams.")
    found = map_tensors(path)
    try:
        if {name: tensor.dtype for name, tensor in found.items()} != _TYPES:
            raise ValueError(f"tensors {sorted(found)}")
        contexts = found["contexts"].data.view(np.int32).reshape(-1, LONGEST_CONTEXT)
        counts, chances = np.array(found["counts"].data), np.array(found["chances"].data)
        return NgramTable(contexts, counts, np.array(found["tokens"].data.view(np.int32)), chances)
    except ValueError as error:
        raise CheckpointError(
            f"{path} holds no table of n-grams ({error}).", hint="Make it again with moa-train ngrams."
        ) from None


def write_ngrams(path: Path, arrays: NgramArrays, target_fingerprint: str) -> None:
    """Writes a table, whole or not at all.

    Raises:
        CheckpointError: the path cannot be written.
        DiskFullError: no room.
    """
    with whole_checkpoint(path, "table of n-grams") as partial:
        tensors = {name: getattr(arrays, name) for name in _TYPES}
        write_tensors(partial, tensors, {NGRAMS_TARGET_KEY: target_fingerprint})
