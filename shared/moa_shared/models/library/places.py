"""Where models are found: the installed package, the hub's cache, ollama, LM Studio, and folders that are named.

Only names are looked at, and ollama's manifests; what a model is, its headers say (examination.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from moa_shared.errors import NotFoundError
from moa_shared.models.gguf.parts import first_parts, is_gguf
from moa_shared.models.library.local_model import (
    LocalModel,
    files_below,
    holds_safetensors,
    in_repository,
    is_model_file,
)
from moa_shared.models.library.ollama import ollama_folders, ollama_models
from moa_shared.models.sources.hub_client import hub_cache
from moa_shared.models.sources.packaged import PACKAGED, find_installed

PACKAGE, HUB, LM_STUDIO, FOLDER = "package", "hub", "LM Studio", "folder"
_REPOSITORY = "models--"  # how the hub's cache calls the folder of owner/name: models--owner--name
_MAIN = "main"


def installed_models() -> list[LocalModel]:
    """All models in the usual places."""
    packaged = {name: find_installed(model) for name, model in PACKAGED.items()}
    return [
        *(
            LocalModel(name, PACKAGE, paths[0], pieces=paths if len(paths) > 1 else ())
            for name, paths in packaged.items()
            if paths is not None
        ),
        *hub_models(hub_cache()),
        *chain.from_iterable(map(ollama_models, ollama_folders())),
        *chain.from_iterable(map(lm_studio_models, lm_studio_folders())),
    ]


def hub_models(cache: Path) -> Iterator[LocalModel]:
    """The models of the hub's cache: OWNER/NAME, with @REVISION unless it is the main one."""
    for name, snapshot in hub_snapshots(cache):
        yield from in_repository(snapshot, name, HUB)


def hub_snapshots(cache: Path) -> Iterator[tuple[str, Path]]:
    """The snapshots of the hub's cache, each with its name: OWNER/NAME, with @REVISION unless it is the main one."""
    for repository in sorted(cache.glob(f"{_REPOSITORY}*")):
        name = repository.name.removeprefix(_REPOSITORY).replace("--", "/", 1)
        for revision, snapshot in snapshots(repository).items():
            yield (name if revision == _MAIN else f"{name}@{revision}"), snapshot


def snapshots(repository: Path) -> dict[str, Path]:
    """The snapshot of each revision that has a name, main first; where none has, the newest one."""
    refs, commits = repository / "refs", repository / "snapshots"
    found: dict[str, Path] = {}
    named = sorted(path for path, _ in files_below(refs))
    for ref in sorted(named, key=lambda path: path != refs / _MAIN):
        try:
            commit = ref.read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        snapshot = commits / commit
        if commit == Path(commit).name and snapshot.is_dir() and snapshot not in found.values():
            found[ref.relative_to(refs).as_posix()] = snapshot
    if found or not commits.is_dir():
        return found
    newest = max(commits.iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    return {} if newest is None else {newest.name: newest}


def lm_studio_folders() -> list[Path]:
    """Where LM Studio keeps models, now and formerly."""
    return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]


def lm_studio_models(folder: Path) -> Iterator[LocalModel]:
    """The models of a folder of LM Studio's, OWNER/NAME each."""
    for repository in sorted(folder.glob("*/*/")):
        yield from in_repository(repository, f"{repository.parent.name}/{repository.name}", LM_STUDIO)


def models_in(place: Path) -> Iterator[LocalModel]:
    """The models below a folder, by their paths; or the one that is a file.

    Raises:
        NotFoundError: there is no such folder or file.
    """
    if place.is_file():
        if is_gguf(place):
            yield LocalModel(str(place), FOLDER, place)
        return
    if not place.is_dir():
        raise NotFoundError(f"There is no folder {place}.")
    files = sorted(files_below(place))
    folders = {folder for path, folder in files if path.suffix == ".safetensors" and holds_safetensors(folder)}
    paths = first_parts([path for path, _ in files if is_model_file(path)])
    for path in sorted([*folders, *paths]):
        yield LocalModel(str(path), FOLDER, path)
