"""Fetches a model from the hub, or a mirror of it (HF_ENDPOINT), into the hub's own cache.

Large files are fetched by ours (sources/hub_files.py), which goes on where it was interrupted; the hub's client then
makes the snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.parts import find_parts
from moa_shared.models.library.hub_choice import choose_files
from moa_shared.models.library.local_model import files_below, is_model_file
from moa_shared.models.library.places import snapshots
from moa_shared.models.sources.files import find_weights
from moa_shared.models.sources.hub import HUB_ID
from moa_shared.models.sources.hub_client import hub_cache, hub_errors, say_if_no_template
from moa_shared.models.sources.hub_files import fetch_large
from moa_shared.programs.progress import Progress

PREFIX = "hub:"
_SPEC = re.compile(rf"(?:{PREFIX})?(?P<id>{HUB_ID.pattern})(?::(?P<wanted>.+))?")
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
    repo_id, revision = model.repo_id, model.revision or None
    with hub_errors(repo_id, model.revision, f"The hub could not be reached for {repo_id}", _OFFLINE):
        from huggingface_hub import HfApi, snapshot_download

        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
        files = {file.rfilename: file for file in info.siblings or ()}
        names = choose_files(repo_id, files, model.wanted)
        say_if_no_template(info, progress)
        fetch_large(repo_id, str(info.sha), [files[name] for name in names], progress)
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
