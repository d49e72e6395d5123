"""By which names a model on this disk is known: its own, and those that a GGUF file gives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.parts import is_gguf, read_parts

_NAMES = ("general.name", "general.base_model.0.name")


def names_of(name: str, paths: Sequence[Path]) -> frozenset[str]:
    """The names of a model.

    Args:
        name: by which it was named.
        paths: of its weights; of GGUF files the headers are read.
    """
    names = {name}
    if paths and is_gguf(paths[0]):
        names.add(paths[0].name)
        try:
            header = read_parts(paths, arrays=False)[0]
        except ModelSourceError:  # it says so when it is loaded
            return frozenset(names)
        names |= {text for key in _NAMES if (text := header.text(key))}
    return frozenset(names)
