"""The models on this machine, each with the drafters that there are for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.drafter.checkpoint.shipped import shipped_drafters_for
from moa_shared.models.gguf.identity import identify
from moa_shared.models.gguf.parts import read_parts
from moa_shared.models.library.examination import Examined, examine
from moa_shared.models.library.places import installed_models, models_in
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.files import gguf_fingerprint
from moa_shared.programs.progress import Progress


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the list.

    Args:
        drafters: that come with moa for it.
    """

    examined: Examined
    drafters: tuple[str, ...]


def list_models(folders: Sequence[Path], cache_dir: Path | None, progress: Progress) -> list[Listed]:
    """What is in the usual places, then what is in the folders that are named.

    Raises:
        NotFoundError: there is no such folder.
    """
    root = cache_root(cache_dir)
    models = [*installed_models(), *(model for folder in folders for model in models_in(folder))]
    with progress.task("Reading the headers of models", len(models)) as task:
        listed = []
        for model in models:
            examined = examine(model, root)
            listed.append(Listed(examined, tuple(shipped_for(examined))))
            task.advance(1)
    return listed


def shipped_for(examined: Examined) -> Iterator[str]:
    """The drafters that come with moa for a model, by name.

    They are for GGUF files; what the fingerprint of one needs is samples.
    """
    if examined.refusal is None and not examined.model.path.is_dir() and not examined.model.pieces:
        files = examined.files
        yield from shipped_drafters_for(
            examined.config, lambda: gguf_fingerprint(identify(read_parts(files, arrays=False)))
        )
