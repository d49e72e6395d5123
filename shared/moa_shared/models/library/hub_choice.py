"""Which files of a repository on the hub a user means: `Q4_K_M`, a file's name, a pattern, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.parts import first_parts, model_name
from moa_shared.models.library.local_model import is_model_file, storage_label
from moa_shared.models.sources.hub import TARGET

USUAL = "Q4_K_M"  # taken where nothing is said, as llama.cpp and ollama do
_MOST_NAMED = 12


def choose_files(repo: str, names: Iterable[str], wanted: str) -> list[str]:
    """The files of one model.

    Args:
        names: of all files of the repository.
        wanted: how the model is stored, a file's name or a pattern of names, whatever the case; "": the safetensors,
            else the only GGUF model, else the one in Q4_K_M.

    Raises:
        ModelSourceError: none is meant, or several are; it names what there is.
    """
    files = sorted(names)
    if not wanted and any(name.endswith(".safetensors") for name in files):
        return [name for name in files if any(fnmatchcase(name, pattern) for pattern in TARGET.patterns)]
    ggufs = [name for name in files if is_model_file(Path(name))]
    if not ggufs:
        raise ModelSourceError(
            f"{repo} holds neither GGUF files nor safetensors." if not wanted else f"{repo} holds no GGUF files.",
            hint="Choose another model." if not wanted else f"To fetch its safetensors, name {repo} alone.",
        )
    found = [name for name in ggufs if _is_meant(name, wanted)] if wanted else ggufs
    if not wanted and len(_models(found)) > 1:
        found = [name for name in ggufs if _is_meant(name, USUAL)] or ggufs
    models = _models(found)
    if len(models) == 1:
        return found
    if not found:
        message = f"{repo} holds no GGUF file {wanted!r}, only {_listed(_models(ggufs))}."
        raise ModelSourceError(message, hint=f"Name one of them, {repo}:{_short(ggufs[0], ggufs)} for one.")
    raise ModelSourceError(
        f"{repo}{':' if wanted else ''}{wanted} may mean several models: {_listed(models)}.",
        hint=f"Name one of them, {repo}:{_short(models[0], ggufs)} for one.",
    )


def _is_meant(name: str, wanted: str) -> bool:
    pattern, path = wanted.casefold(), PurePosixPath(name)
    words = (name, path.name, model_name(Path(name)), storage_label(path.name) or "")
    return any(word.casefold() == pattern or fnmatchcase(word.casefold(), pattern) for word in words)


def _models(names: Sequence[str]) -> list[str]:
    return [path.as_posix() for path in first_parts([Path(name) for name in names])]


def _short(name: str, names: Sequence[str]) -> str:
    """What is enough to mean this one of the names."""
    label = storage_label(name)
    return (
        label if label is not None and len(_models([each for each in names if _is_meant(each, label)])) == 1 else name
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
