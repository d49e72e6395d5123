"""The tensors of a checkpoint's file, mapped; each is widened when it is asked for. Needs only numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        values = tensor.data.view(_STORED[tensor.dtype]).reshape(tensor.shape)
        if tensor.dtype == "BF16":
            wide: npt.NDArray[Any] = widen_bfloat16(values)
        else:
            wide = values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
        drop_pages(tensor.data)
        return wide

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors
