"""`--drafter auto` for a model with which no drafter comes: the best that is on this machine. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from moa_shared.drafter.choice.cached import cached_drafters
from moa_shared.drafter.choice.choosing import Candidate, ranked
from moa_shared.drafter.choice.known import known_for
from moa_shared.drafter.choice.model_names import names_of
from moa_shared.drafter.published.find import drafter_in_folder
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.progress import Progress, SilentProgress


def choose_drafter(
    files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None
) -> tuple[str, Path] | None:
    """The id on the hub of the drafter to take, and its checkpoint's file; None: there is none.

    One that cannot be used after all, such as a quantised one, is passed over. Says what it takes and why, or what
    could be fetched.

    Args:
        files: the target.
        cache_dir: as of `moa_shared.models.resolve`.

    Raises:
        ConfigError, DiskFullError: moa's cache cannot be written.
    """
    root, progress = cache_root(cache_dir), progress or SilentProgress()
    names = names_of(files.target_id, files.weights)
    candidates = cached_drafters(files.config, files.fingerprint, root)
    for each in ranked(candidates, names):
        try:
            path = drafter_in_folder(each.folder, each.name, files, root, progress)
        except CheckpointError as error:
            progress.note(f"The drafter {each.name} is passed over: {error.message}")
            continue
        progress.note(f"The drafter is {each.name}: {each.reason}.")
        return each.name, path
    progress.note(_nothing_words(files, names, candidates))
    return None


def _nothing_words(files: ModelFiles, names: Collection[str], candidates: Sequence[Candidate]) -> str:
    nothing = f"There is no drafter for {files.target_id} on this machine"
    fetchable = [each for each in known_for(names, files.config) if each.kind.is_converted]
    if fetchable:
        best = min(fetchable, key=lambda each: each.kind.rank)
        return f"{nothing}. To fetch one: --drafter {best.hub_id} ({best.kind.label})."
    if candidates:
        listed = f"`moa-server drafters {files.target_id}`"
        return f"{nothing} that is known to be for it; {listed} lists those that fit by their sizes."
    return f"{nothing}, and none is known; `moa-train fit` makes one."
