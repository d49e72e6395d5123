"""The files of a published checkpoint: config.json, and tensors in safetensors or pickled by torch, perhaps in shards.

Pickles are read with `weights_only`, which makes tensors and nothing else. Floats keep their precision.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.kinds.config import Shapes
from moa_shared.errors import CheckpointError, ModelSourceError
from moa_shared.models.files import indexed_files, read_config
from moa_shared.models.storage.tensors import FileTensor, map_tensors

SAFETENSORS, PICKLED = ".safetensors", (".bin", ".pt", ".pth")
_SINGLE = ("model.safetensors", "pytorch_model.bin")  # each, or else its index, in this order
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
_REFETCH = "Fetch it again."
# Of a damaged pickle torch lets through whatever its instructions stumble over.
_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, pickle.PickleError)

Read = TypeVar("Read")
Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    folder: Path
    weights: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> PublishedFiles:
        for name in _SINGLE:
            if (folder / name).is_file():
                return cls(folder, (folder / name,))
            index = folder / f"{name}.index.json"
            if index.is_file():
                return cls(folder, _of_checkpoint(indexed_files, index))
        raise CheckpointError(
            f"The folder {folder} holds no drafter: none of drafter.safetensors, {', '.join(_SINGLE)}.",
            hint="Name a folder that moa-train fit wrote, or a checkpoint as it is published.",
        )

    def config(self) -> dict[str, Any]:
        hint = "Put the config.json that was published with the checkpoint next to it."
        return _of_checkpoint(read_config, self.folder, hint)

    def tensors(self) -> Tensors:
        """The tensors of all files: float32, float16, the bit patterns of bfloat16 as uint16, whole numbers as int64.

        A tensor of another type is int32 of zeros, which no drafter has.
        """
        tensors: dict[str, npt.NDArray[Any]] = {}
        for path in self.weights:
            if path.suffix in PICKLED:
                tensors |= _unpickled(path)
            else:
                tensors |= {name: _stored(tensor) for name, tensor in _mapped(path).items()}
        return tensors

    def shapes(self) -> Shapes:
        """Of the tensors, of which none is read; pickled files are read whole. Errors as of `tensors`."""
        shapes: Shapes = {}
        for path in self.weights:
            tensors = _unpickled(path) if path.suffix in PICKLED else _mapped(path)
            shapes |= {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        return shapes


def _of_checkpoint(read: Callable[[Path], Read], path: Path, hint: str = _REFETCH) -> Read:
    """What is read of a file or folder; what is wrong with it is wrong with the checkpoint."""
    try:
        return read(path)
    except ModelSourceError as error:
        raise CheckpointError(error.message, hint=hint) from None


def _mapped(path: Path) -> dict[str, FileTensor]:
    return _of_checkpoint(map_tensors, path)


def _stored(tensor: FileTensor) -> npt.NDArray[Any]:
    if tensor.dtype not in _STORED:  # such as EAGLE-3's marks of the target's tokens, which are not needed
        return np.broadcast_to(np.int32(0), tensor.shape)
    return _plain(tensor.data.view(_STORED[tensor.dtype]).reshape(tensor.shape))


def _unpickled(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        import torch
    except ImportError:
        raise CheckpointError(
            f"{path} is pickled, and reading it takes torch, which is not installed here.",
            hint="Leave --drafter out: the server sends its drafter. Or install torch.",
        ) from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise CheckpointError(
            f"{path} is corrupt, or holds more than tensors, which is not read ({reason}).", hint=_REFETCH
        ) from None
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise CheckpointError(f"{path} holds something other than tensors by name.", hint=_REFETCH)
    return {str(name): _as_array(value) for name, value in content.items()}


def _as_array(tensor: Any) -> npt.NDArray[Any]:
    import torch

    is_plain, floats = tensor.layout == torch.strided, (torch.float64, torch.float32, torch.float16)
    if is_plain and tensor.dtype == torch.bfloat16:
        return _plain(tensor.contiguous().view(torch.int16).numpy().view(np.uint16))
    if not is_plain or tensor.dtype not in (*floats, torch.int64, torch.int32):
        return np.broadcast_to(np.int32(0), tuple(tensor.shape))
    return _plain(tensor.contiguous().numpy())


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype == np.float64:
        return values.astype(np.float32)
    return values.astype(np.int64) if values.dtype == np.int32 else values
