"""Safetensors files without the library: a length, a JSON header, the tensors' bytes.

Files are mapped, not read: only the tensors that are asked for are brought in. Invariant: every tensor that a header
names lies within its file and is as long as its shape and type say.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import guard

from moa_shared.errors import ModelSourceError
from moa_shared.models.tensors.formats import Bytes
from moa_shared.text.json_text import parse_json

_METADATA = "__metadata__"
_MOST_HEADER = 100_000_000  # bytes; the format's own bound
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_CODES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32", "uint16": "BF16"}
_UNREADABLE = (
    "Error: {path} can no longer be read: it was shortened or overwritten while it was in use, or its disk failed. "
    "Put the whole file back and start again."
)
_CORRUPT = "The file is truncated or corrupt: delete it and fetch the model again."


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a file: its type's code ("F32", "BF16", "U8" ...), its shape, and its bytes, mapped."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def map_tensors(path: Path) -> dict[str, FileTensor]:
    """The tensors of a file by name.

    Raises:
        ModelSourceError: it cannot be read, or is no whole safetensors file.
    """
    try:
        header, body = _split(map_file(path))
        tensors = {str(name): _tensor(entry, body) for name, entry in header.items() if name != _METADATA}
        used = sum(len(tensor.data) for tensor in tensors.values())
        if used != len(body):
            raise ValueError(f"{len(body)} bytes of tensors, expected {used}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelSourceError(f"The weights {path} cannot be read ({error}).", hint=_CORRUPT) from error
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """A file's own metadata, without its tensors.

    Raises:
        ModelSourceError: it cannot be read.
    """
    try:
        header, _ = _split(map_file(path))
        return {str(key): str(value) for key, value in header.get(_METADATA, {}).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ModelSourceError(f"The header of {path} cannot be read ({error}).", hint=_CORRUPT) from error


def map_file(path: Path, *, large_pages: bool = False) -> Bytes:
    """The bytes of a file, read when they are looked at; read-only.

    Where they can no longer be read then, the process ends with a sentence and exit code 74.

    Args:
        large_pages: in pages of 2 MiB, where the system has these for files and does not hold the file in smaller ones.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:  # what cannot be mapped
            return np.empty(0, np.uint8)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of a system without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    guard(mapping, _UNREADABLE.format(path=path))
    return np.frombuffer(mapping, np.uint8)


def drop_pages(data: Bytes) -> None:
    """Gives the memory of a mapped file's pages back; they are read again when they are looked at."""
    source = data.base
    while isinstance(source, np.ndarray):
        source = source.base
    if isinstance(source, memoryview):
        source = source.obj
    if isinstance(source, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        source.madvise(mmap.MADV_DONTNEED)


def write_tensors(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file; arrays of uint16 are bfloat16.

    Raises:
        OSError: no room, no permission.
        ValueError: an array of another type than float32, float16, uint8, int8, int32, uint16.
    """
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, array in tensors.items():
        code = _CODES.get(array.dtype.name)
        if code is None:
            raise ValueError(f"{name} is {array.dtype}, which is not written")
        end = offset + array.nbytes
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the tensors begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def _split(data: Bytes) -> tuple[dict[str, Any], Bytes]:
    """The header, and the bytes of the tensors."""
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(len(data) - 8, _MOST_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header: dict[str, Any] = parse_json(data[8 : 8 + length].tobytes())
    return header, data[8 + length :]


def _tensor(entry: Any, body: Bytes) -> FileTensor:
    shape, dtype = tuple(int(size) for size in entry["shape"]), str(entry["dtype"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    expected = math.prod(shape) * _SIZES[dtype] if dtype in _SIZES else end - begin
    if not 0 <= begin <= end <= len(body) or end - begin != expected or any(size < 0 for size in shape):
        raise ValueError(f"a tensor of shape {list(shape)} in the bytes {begin} to {end} of {len(body)}")
    return FileTensor(dtype, shape, body[begin:end])
