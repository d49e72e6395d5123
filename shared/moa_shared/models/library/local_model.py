"""`LocalModel`: a model on this disk, and how those of one repository are told apart."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moa_shared.models.gguf.parts import first_parts, model_name

# What says how a file is stored, in its name: Q4_K_M, UD-Q4_K_XL, IQ4_XS, BF16, MXFP4_MOE.
_LABEL = re.compile(r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-.])", re.IGNORECASE)
_PROJECTOR = "mmproj"  # how names of what reads pictures begin; it is a part of another model


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this disk.

    Args:
        name: by which it can be served.
        place: who keeps it: "hub", "ollama" and so on.
        path: its GGUF file (the first one of several), or its folder of safetensors.
        refusal: why it cannot be served, where that shows without a look at it: "has an adapter".
        pieces: that its GGUF file is joined from when it is used, `path` first; empty: it is whole.
    """

    name: str
    place: str
    path: Path
    refusal: str = ""
    pieces: tuple[Path, ...] = ()


def storage_label(name: str) -> str | None:
    """Q4_K_M out of `Some-8B-Q4_K_M.gguf`; None where the name does not say."""
    found = _LABEL.findall(model_name(Path(name)))
    return str(found[-1]) if found else None


def in_repository(folder: Path, name: str, place: str) -> Iterator[LocalModel]:
    """The models of a folder that is a repository: NAME:Q4_K_M or NAME:FILE for GGUF, NAME for safetensors."""
    if holds_safetensors(folder):
        yield LocalModel(name, place, folder)
    paths = first_parts(sorted(path for path, _ in files_below(folder) if is_model_file(path)))
    labels = [storage_label(path.name) for path in paths]
    often = Counter(label.casefold() for label in labels if label is not None)
    for path, label in zip(paths, labels, strict=True):
        alone = label is not None and often[label.casefold()] == 1
        yield LocalModel(f"{name}:{label if alone else path.relative_to(folder).as_posix()}", place, path)


def is_model_file(path: Path) -> bool:
    """Whether a file is named like a model in GGUF."""
    return path.suffix.lower() == ".gguf" and not path.name.lower().startswith(_PROJECTOR)


def holds_safetensors(folder: Path) -> bool:
    """Whether a folder holds a model in the layout of save_pretrained."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def files_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Each file below a folder, and the folder that it is in; folders that may not be read are passed over."""
    for inner, _, names in os.walk(folder):
        for name in names:
            yield Path(inner, name), Path(inner)
