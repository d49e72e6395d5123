"""Where a drafter's weights come from: its checkpoint, mapped, and the parts of the target that it uses unchanged.

Names are Hugging Face's, those of a checkpoint the authors'. No state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import Linear, QuantisedMatrix, quantised
from moa_kernels.blocks import joined

from moa_shared.bfloat16 import widen_bfloat16
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.errors import ModelSourceError
from moa_shared.models.network.layers import Weights
from moa_shared.models.tensors import FileTensor, drop_pages
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD

_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"}


class StoredTensors(Mapping[str, npt.NDArray[Any]]):
    """Tensors by name: floats as float32, integers as int32; the file's own pages are not kept."""

    def __init__(self, tensors: Mapping[str, FileTensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype not in _STORED:
                raise ValueError(f"{name} is {tensor.dtype}")
        self._tensors = tensors

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        tensor = self._tensors[name]
        wide = _widened(_stored(tensor), tensor.dtype)
        drop_pages(tensor.data)
        return wide

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def rows(self, name: str, ids: npt.NDArray[np.int64] | Sequence[int]) -> npt.NDArray[Any]:
        """Some rows of a tensor, of which the others are not read."""
        tensor = self._tensors[name]
        return _widened(_stored(tensor)[np.asarray(ids)], tensor.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors


def _stored(tensor: FileTensor) -> npt.NDArray[Any]:
    return tensor.data.view(_STORED[tensor.dtype]).reshape(tensor.shape)


def _widened(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    if dtype == "BF16":
        wide: npt.NDArray[Any] = widen_bfloat16(values)
        return wide
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


DRAFT_IDS = "draft_ids"  # exact in float32 up to 16 million tokens

Ids = npt.NDArray[np.int64] | Sequence[int]
_HEAD_ROWS = 4096  # rows of a head in float32 at once: bounds what is held next to the packed ones


class ArrayWeights:
    """Float tensors that are in memory, or are read when asked for.

    Each method raises ModelSourceError if there is no such tensor.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.floating]]) -> None:
        self._arrays = arrays

    def names(self) -> Collection[str]:
        return self._arrays.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        if isinstance(self._arrays, StoredTensors) and name in self._arrays:
            return self._arrays.shape(name)
        return self._array(name).shape

    def blocks(self, name: str) -> QuantisedMatrix | None:
        return None

    def array(self, name: str) -> Rows:
        return np.asarray(self._array(name), np.float32)

    def rows(self, name: str, ids: Ids) -> Rows:
        if isinstance(self._arrays, StoredTensors) and name in self._arrays:
            return np.asarray(self._arrays.rows(name, ids), np.float32)
        return np.asarray(self._array(name)[np.asarray(ids)], np.float32)

    def _array(self, name: str) -> npt.NDArray[np.floating]:
        if name not in self._arrays:
            raise ModelSourceError(f"The weights hold no tensor {name}.")
        return self._arrays[name]


def read_head(weights: Weights, ids: Ids | None, arithmetic: Arithmetic) -> Linear:
    """The output weights of these tokens; None: of all."""
    blocks = weights.blocks(HEAD)
    if isinstance(blocks, QuantisedMatrix):
        return arithmetic.linear([blocks if ids is None else blocks.rows(ids)])
    if blocks is not None and ids is None:
        return arithmetic.linear([blocks])
    chosen = np.arange(weights.shape(HEAD)[0]) if ids is None else np.asarray(ids)
    if arithmetic.plain or arithmetic.in_numpy:
        return arithmetic.linear([weights.rows(HEAD, chosen)])
    batches = range(0, len(chosen), _HEAD_ROWS)
    parts = [quantised(weights.rows(HEAD, chosen[start : start + _HEAD_ROWS])) for start in batches]
    return arithmetic.linear([joined(parts)])


def draft_ids(own: Weights) -> npt.NDArray[np.int64] | None:
    """The target's token of each column of a drafter's logits; None: the same."""
    return own.array(DRAFT_IDS).astype(np.int64) if DRAFT_IDS in own.names() else None


def check_tables(
    weights: Weights, vocab_size: int, hidden_size: int, names: Sequence[str] = (EMBEDDINGS, HEAD)
) -> None:
    """Raises ModelSourceError if embeddings or head have other shapes than a drafter needs."""
    for name in names:
        shape = weights.shape(name)
        if shape != (vocab_size, hidden_size):
            raise ModelSourceError(
                f"{name} of the target has the shape {list(shape)}, the drafter needs {[vocab_size, hidden_size]}.",
                hint="Give a drafter that was trained for this target.",
            )
