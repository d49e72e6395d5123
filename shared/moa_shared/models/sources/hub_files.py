"""Fetches large files of the hub, or of a mirror of it (HF_ENDPOINT), into the hub's own cache.

A file that was interrupted goes on where it was: the hub's client keeps none between two processes, so its bytes are
collected in a file of ours next to its blobs, which becomes the blob once its hash is right.
Invariant: a blob is whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ChecksumError, ModelSourceError
from moa_shared.models.sources.cache import locked, require_space
from moa_shared.models.sources.digest import hash_file
from moa_shared.models.sources.hub_client import LARGER_DISK, hub_cache
from moa_shared.programs.progress import Progress, Task

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_ETAG = re.compile(r"[\w-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_large(repo_id: str, commit: str, files: Sequence[RepoSibling], progress: Progress) -> None:
    """Fetch those of a repository's files that are large and not there yet, showing their bytes.

    Raises:
        ModelSourceError: the hub describes a file by no hash.
        ChecksumError: a file came differently than the hub describes it.
        DiskFullError: no room in the hub's cache, seen before.
        Exception: as of the hub's client; see `hub_errors`.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # they would mix with ours
    large = [
        file
        for file in files
        if file.lfs is not None
        and (file.size or 0) <= constants.MAX_HTTP_DOWNLOAD_SIZE
        and not isinstance(try_to_load_from_cache(repo_id, file.rfilename, revision=commit), str)
    ]
    if large:
        _fetch(repo_id, commit, large, progress)


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
