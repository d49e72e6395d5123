"""Which checkpoint a user means, and whether it fits the target."""

from __future__ import annotations

from pathlib import Path

from moa_shared.drafter import Checkpoint, load_checkpoint
from moa_shared.drafter.checkpoint.shipped import SHIPPED_DRAFTERS, require_shipped_drafter
from moa_shared.drafter.published.find import find_drafter
from moa_shared.errors import MismatchError
from moa_shared.models import ModelFiles

LOOKUP, NONE = "lookup", "none"  # prompt look-up and plain steps, which need no file


def find_checkpoint(name: str, files: ModelFiles) -> Path:
    """The file that a user means: one of SHIPPED_DRAFTERS, or as of `find_drafter`.

    Raises:
        NotFoundError, ModelSourceError, CheckpointError: no such checkpoint for this target.
    """
    if name in SHIPPED_DRAFTERS:
        hint = "Train one with moa-train fit."
        return require_shipped_drafter(files.fingerprint, files.target_id, name, hint=hint)
    return find_drafter(name, files)


def load_fitting_checkpoint(name: str, files: ModelFiles) -> Checkpoint:
    """The checkpoint; raises MismatchError for a drafter of another target."""
    path = find_checkpoint(name, files)
    checkpoint = load_checkpoint(path)
    made_for = checkpoint.config.target_fingerprint
    if made_for and made_for != files.fingerprint:
        raise MismatchError(
            f"The drafter {path} was made for another target ({made_for[:12]}, this one is {files.fingerprint[:12]}).",
            hint="Name its target with --target.",
        )
    return checkpoint
