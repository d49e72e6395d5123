"""The tensors of a checkpoint's file, mapped; each is widened when it is asked for. Needs only numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.bfloat16 import widen_bfloat16
from moa_shared.models.tensors.safetensors import FileTensor, drop_pages

_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"}


class StoredTensors(Mapping[str, npt.NDArray[Any]]):
    """Tensors by name: floats as float32, integers as int32; the file's own pages are not kept.

    Raises:
        ValueError: a tensor of another type.
    """

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
        """Of a tensor, which is not read for it."""
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
