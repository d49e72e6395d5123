"""Fetches a model from the hub, or a mirror of it (HF_ENDPOINT), into the hub's own cache.

A large file that was interrupted goes on where it was: the hub's client keeps none between two processes, so its bytes
are collected in a file of ours next to its blobs, which becomes the blob once its hash is right. The client then makes
the snapshot. Invariant: a blob is whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ChecksumError, ModelSourceError
from moa_shared.models.gguf.parts import find_parts
from moa_shared.models.library.hub_choice import choose_files
from moa_shared.models.library.local_model import files_below, is_model_file
from moa_shared.models.library.places import snapshots
from moa_shared.models.sources.cache import locked, require_space
from moa_shared.models.sources.digest import hash_file
from moa_shared.models.sources.files import find_weights
from moa_shared.models.sources.hub import HUB_ID, LARGER_DISK, hub_cache, hub_errors
from moa_shared.programs.progress import Progress, Task

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

PREFIX = "hub:"
_SPEC = re.compile(rf"(?:{PREFIX})?(?P<id>{HUB_ID.pattern})(?::(?P<wanted>.+))?")
_ETAG = re.compile(r"[\w-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OFFLINE = "Check the network, or HF_ENDPOINT if you use a mirror; what was fetched is kept, and goes on from there."


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub: `OWNER/NAME[@REVISION][:WANTED]`, with `hub:` before it or not.

    Args:
        wanted: as of `choose_files`.
    """

    repo_id: str
    revision: str
    wanted: str

    @classmethod
    def parse(cls, spec: str) -> HubModel | None:
        """What a user means; None: nothing on the hub."""
        match = _SPEC.fullmatch(spec)
        if match is None:
            return None
        repo_id, _, revision = match["id"].partition("@")
        return cls(repo_id, revision, match["wanted"] or "")


def pulled(model: HubModel) -> Path | None:
    """The model in the hub's cache: a GGUF file, or a folder of safetensors; None: it is not there, or not whole."""
    repository = hub_cache() / f"models--{model.repo_id.replace('/', '--')}"
    snapshot = snapshots(repository).get(model.revision or "main")
    if snapshot is None:
        return None
    try:
        names = [path.relative_to(snapshot).as_posix() for path, _ in files_below(snapshot)]
        return _result(snapshot, choose_files(model.repo_id, names, model.wanted))
    except ModelSourceError:  # the hub may have what is meant, or the rest of it
        return None


def pull(model: HubModel, progress: Progress) -> Path:
    """Fetch what is not there yet; the GGUF file (the first of several), or the folder of safetensors.

    Raises:
        ModelSourceError: no such model or file, no permission, or the hub cannot be reached; it says which.
        ChecksumError: a file came differently than the hub describes it.
        DiskFullError: no room in the hub's cache, seen before or while writing.
    """
    from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.utils.tqdm import disable_progress_bars

    repo_id, revision = model.repo_id, model.revision or None
    disable_progress_bars()  # they would mix with ours
    with hub_errors(repo_id, model.revision, f"The hub could not be reached for {repo_id}", _OFFLINE):
        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
        files = {file.rfilename: file for file in info.siblings or ()}
        names = choose_files(repo_id, files, model.wanted)
        large = [
            files[name]
            for name in names
            if files[name].lfs is not None
            and (files[name].size or 0) <= constants.MAX_HTTP_DOWNLOAD_SIZE
            and not isinstance(try_to_load_from_cache(repo_id, name, revision=info.sha), str)
        ]
        if large:
            _fetch(repo_id, str(info.sha), large, progress)
        snapshot = Path(snapshot_download(repo_id, revision=revision, allow_patterns=names))  # links, and small files
    return _result(snapshot, names)


def _result(snapshot: Path, names: Sequence[str]) -> Path:
    """What is served of a snapshot with these files.

    Raises:
        ModelSourceError: some are missing.
    """
    ggufs = [name for name in names if is_model_file(Path(name))]
    if ggufs:
        return find_parts(snapshot / ggufs[0])[0]
    find_weights(snapshot)
    return snapshot


def _fetch(repo_id: str, commit: str, files: Sequence[RepoSibling], progress: Progress) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but not said to be

    cache = hub_cache()
    folder = repo_folder_name(repo_id=repo_id, repo_type="model")
    blobs, locks = cache / folder / "blobs", cache / ".locks" / folder
    blobs.mkdir(parents=True, exist_ok=True)
    total = sum(file.size or 0 for file in files)
    partial = {file.rfilename: blobs / f"{_sha256(file)}.moa.incomplete" for file in files}
    there = sum(path.stat().st_size for path in partial.values() if path.is_file())
    require_space(blobs, max(0, total - there), repo_id, LARGER_DISK)
    with progress.task(f"Fetching {repo_id} from {constants.ENDPOINT}", total, is_bytes=True) as task:
        for file in files:
            path = partial[file.rfilename]
            with locked(locks / path.name, progress):
                url = hf_hub_url(repo_id, file.rfilename, revision=commit)
                etag = str(get_hf_file_metadata(url).etag)  # by which the client will look for the blob
                blob = blobs / (etag if _ETAG.fullmatch(etag) else _sha256(file))
                if blob.is_file():
                    task.advance(file.size or 0)
                    continue
                with path.open("ab") as written:
                    begun = written.tell()
                    task.advance(begun)
                    http_get(
                        url,
                        written,
                        resume_size=begun,
                        headers=build_hf_headers(),
                        expected_size=file.size,
                        tqdm_class=_counter(task),
                    )
                _check(path, _sha256(file), progress)
                path.rename(blob)


def _check(path: Path, sha256: str, progress: Progress) -> None:
    got = hash_file(path, progress)
    if got != sha256:
        path.unlink()
        raise ChecksumError(
            f"{path} has the sha256 {got}, expected {sha256}.",
            hint="It was deleted: fetch it again, or from another HF_ENDPOINT.",
        )


def _sha256(file: RepoSibling) -> str:
    digest = str(file.lfs.sha256) if file.lfs is not None else ""
    if not _SHA256.fullmatch(digest):
        raise ModelSourceError(f"The hub describes {file.rfilename} by {digest!r}, expected a sha256.")
    return digest


def _counter(task: Task) -> Any:
    """A class that takes the place of tqdm's bars, and counts for our own."""

    class Counter:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, amount: int) -> None:
            task.advance(amount)

    return Counter
