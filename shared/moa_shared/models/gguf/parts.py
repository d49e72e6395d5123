"""GGUF models in several files: `NAME-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them.

The first part holds the metadata of the whole model, and each part its own tensors. Invariant: a model is read only if
all its parts are there.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader, TensorEntry, read_header

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_COUNT = "split.count"
_SUFFIX, _MAGIC = ".gguf", b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether a file says that it is a GGUF file, by its suffix or its first bytes (ollama's have no suffix)."""
    if path.suffix.lower() == _SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def model_name(path: Path) -> str:
    """What a model is called by its file: the name without suffix and number of the part."""
    part = _PART.fullmatch(path.name)
    return part["stem"] if part is not None else path.stem


def find_parts(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` is a file of, in order; a whole model is one file.

    Raises:
        ModelSourceError: parts are missing, by name.
    """
    part = _PART.fullmatch(path.name)
    if part is None or not 0 < int(part["number"]) <= int(part["count"]):
        return (path,)
    numbers = range(1, int(part["count"]) + 1)
    parts = [path.with_name(f"{part['stem']}-{number:05}-of-{part['count']}{part['suffix']}") for number in numbers]
    missing = [each.name for each in parts if not each.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelSourceError(
            f"{path} is one of {len(parts)} parts of a model, of which {missing[0]}{more} is missing.",
            hint=f"Put all parts into {path.parent}.",
        )
    return tuple(parts)


def first_parts(paths: Sequence[Path]) -> list[Path]:
    """One file for each model: of those that are split the first part that is there.

    Args:
        paths: in order.
    """
    firsts: dict[tuple[Path, str], Path] = {}
    for path in paths:
        part = _PART.fullmatch(path.name)
        firsts.setdefault((path.parent, path.name if part is None else f"{part['stem']} of {part['count']}"), path)
    return list(firsts.values())


def read_parts(
    paths: Sequence[Path],
    *,
    arrays: bool = True,
    array_ends: MutableMapping[int, int] | None = None,
    file_bytes: int | None = None,
) -> list[GgufHeader]:
    """The headers of a model's files.

    Args:
        array_ends, file_bytes: of the first one, as of `read_header`.

    Raises:
        ModelSourceError: one cannot be read, or they are not the parts of one model.
    """
    headers = [read_header(paths[0], arrays=arrays, array_ends=array_ends, file_bytes=file_bytes)]
    headers += [read_header(path, arrays=False) for path in paths[1:]]
    for header in headers:
        count = header.integer(_COUNT) or 1
        if count != len(paths):
            raise ModelSourceError(
                f"{header.path} is one of {count} parts of a model, but was found as one of {len(paths)}.",
                hint="Give the parts the names that they were written with: NAME-00001-of-00003.gguf and so on.",
            )
    return headers


def join_headers(headers: Sequence[GgufHeader]) -> GgufHeader:
    """The header of the whole model: the first part's metadata, and all tensors, each at its place in its own file.

    Raises:
        ModelSourceError: two parts hold the same tensor.
    """
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise ModelSourceError(f"{header.path} holds {min(twice)}, as a part before it does.", hint=DAMAGED)
        tensors |= header.tensors
    return GgufHeader(headers[0].path, headers[0].metadata, tensors, headers[0].size)
