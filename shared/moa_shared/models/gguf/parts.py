"""The files of GGUF models: their names, how they are stored, and models in several parts.

Parts are `NAME-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them: the first one holds the metadata
of the whole model, and each its own tensors. Invariant: a model is read only if all its parts are there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader, TensorEntry, read_header

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_COUNT = "split.count"
_SUFFIX, _MAGIC = ".gguf", b"GGUF"
# What says how a file is stored, in its name: Q4_K_M, UD-Q4_K_XL, IQ4_XS, BF16, MXFP4_MOE.
_LABEL = re.compile(r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-.])", re.IGNORECASE)
# llama.cpp's numbers of mixtures (`general.file_type`).
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M",
    18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


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


def is_model_file(path: Path) -> bool:
    """Whether a file is named like a model in GGUF; `mmproj` reads pictures, and is a part of another model."""
    return path.suffix.lower() == _SUFFIX and not path.name.lower().startswith("mmproj")


def storage_label(name: str) -> str | None:
    """Q4_K_M out of `Some-8B-Q4_K_M.gguf`; None where the name does not say."""
    found = _LABEL.findall(model_name(Path(name)))
    return str(found[-1]) if found else None


def file_type(header: GgufHeader) -> str:
    """How the model is stored, in the words of such labels: as the header says, else the format of most bytes."""
    number = header.integer("general.file_type")
    if number in _FILE_TYPES:
        return _FILE_TYPES[number]
    sizes = Counter[str]()
    for tensor in header.tensors.values():
        sizes[tensor.stored.name] += tensor.size
    return sizes.most_common(1)[0][0].upper() if sizes else ""


def files_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Each file below a folder, and the folder that it is in; folders that may not be read are passed over."""
    for inner, _, names in os.walk(folder):
        for name in names:
            yield Path(inner, name), Path(inner)


def find_parts(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` is a file of, in order; a whole model is one file."""
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
    """One file for each model: of those that are split the first part that is there. `paths`: in order."""
    firsts: dict[tuple[Path, str], Path] = {}
    for path in paths:
        part = _PART.fullmatch(path.name)
        firsts.setdefault((path.parent, path.name if part is None else f"{part['stem']} of {part['count']}"), path)
    return list(firsts.values())


def read_parts(paths: Sequence[Path], *, arrays: bool = True) -> list[GgufHeader]:
    headers = [read_header(paths[0], arrays=arrays)]
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
    """The header of the whole model: the first part's metadata, and all tensors, each at its place in its own file."""
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise ModelSourceError(f"{header.path} holds {min(twice)}, as a part before it does.", hint=DAMAGED)
        tensors |= header.tensors
    return GgufHeader(headers[0].path, headers[0].metadata, tensors, headers[0].size)
