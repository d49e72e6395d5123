"""From what a user names with --drafter to a checkpoint's file: a file, a folder, or an id on the hub."""

from __future__ import annotations

from pathlib import Path

from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE
from moa_shared.drafter.published.adopt import adopt
from moa_shared.drafter.published.files import PICKLED, SAFETENSORS, PublishedFiles
from moa_shared.drafter.published.named_target import check_vocabulary, model_key, named_target
from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.hub import HUB_ID, HubSelection, fetch_from_hub
from moa_shared.models.tensors.safetensors import read_metadata
from moa_shared.programs.progress import Progress, SilentProgress

_WANTED = HubSelection(
    ("config.json", "confidence.json", "*.safetensors", "*.bin", "*.index.json"),
    "Check the network, or name a folder or a file.",
)


def find_drafter(spec: str, files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint's file that a user means; one that others published is converted into the cache once.

    Args:
        spec: a file; a folder that moa-train wrote; or a folder or hub id of a published checkpoint.
        files: its target.
        cache_dir: as of `moa_shared.models.resolve`.

    Raises:
        NotFoundError: no such file or folder, and not a hub id.
        ModelSourceError: the hub has none of that id, or cannot be reached.
        CheckpointError: a layout that is not known, or a drafter for another target, by its sizes or its tokenizer.
    """
    root, progress = cache_root(cache_dir), progress or SilentProgress()
    path = Path(spec).expanduser()
    if spec.strip() and path.is_dir():
        return drafter_in_folder(path, spec, files, root, progress)
    if path.is_file():
        if path.suffix not in (SAFETENSORS, *PICKLED) or _is_ours(path) or not _has_config(path):
            return path
        return _adopted(PublishedFiles(path.parent, (path,)), spec, files, root, progress)
    if path.suffix in (SAFETENSORS, *PICKLED) or not HUB_ID.fullmatch(spec):
        raise NotFoundError(f"There is no drafter checkpoint {spec}.", hint="Check the path given with --drafter.")
    return drafter_in_folder(fetch_from_hub(spec, progress, _WANTED), spec, files, root, progress)


def drafter_in_folder(folder: Path, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    """The checkpoint's file of a folder.

    Args:
        name: of the checkpoint, in messages.
        root: moa's cache folder.

    Raises:
        CheckpointError: as of `find_drafter`.
    """
    own = folder / DRAFTER_FILE
    if own.is_file():
        return own
    return _adopted(PublishedFiles.of(folder), name, files, root, progress)


def _adopted(published: PublishedFiles, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    """As `adopt`, of a checkpoint that does not belong to another model by its tokenizer; says if it names another."""
    check_vocabulary(published.folder, name, files, root)
    path = adopt(published, name, files, root, progress)
    named = named_target(published.config())
    if named and model_key(named) != model_key(files.target_id):
        progress.note(f"The drafter {name} says that it was trained for {named}; here it drafts for {files.target_id}.")
    return path


def _has_config(path: Path) -> bool:
    return path.suffix in PICKLED or (path.parent / "config.json").is_file()


def _is_ours(path: Path) -> bool:
    """Whether it says its configuration; a file that cannot be read is looked at by who loads it."""
    if path.suffix != SAFETENSORS:
        return False
    try:
        return CONFIG_KEY in read_metadata(path)
    except ModelSourceError:
        return True
