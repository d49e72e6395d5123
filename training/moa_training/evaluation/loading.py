"""Which drafter a user means, and whether it fits the target."""

from pathlib import Path

from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.checkpoint.shipped import SHIPPED_DRAFTERS, require_shipped_drafter
from moa_shared.drafter.checkpoint.statistics import confidence_for
from moa_shared.drafter.companion import confidence_beside, find_companion, load_companion
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import ConfigError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.files import end_of_text
from moa_shared.models.storage.cache import cache_root
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import Sampling

from moa_training.evaluation.subjects import CompanionSubject, DrafterSubject, LookupSubject, Subject
from moa_training.teacher.target_reader import load_reader

LOOKUP, NONE = "lookup", "none"  # prompt look-up and plain steps, which need no file
PREFIX = "companion:"  # in place of a checkpoint's name


def find_checkpoint(name: str, files: ModelFiles) -> Path:
    """The file that a user means: one of SHIPPED_DRAFTERS, or as of `find_drafter`."""
    if name in SHIPPED_DRAFTERS:
        hint = "Train one with moa-train fit."
        return require_shipped_drafter(files.fingerprint, files.target_id, name, hint=hint)
    return find_drafter(name, files)


def load_fitting_checkpoint(path: Path, files: ModelFiles) -> Checkpoint:
    """The checkpoint; raises MismatchError for a drafter of another target."""
    checkpoint = load_checkpoint(path)
    made_for = checkpoint.config.target_fingerprint
    if made_for and made_for != files.fingerprint:
        raise MismatchError(
            f"The drafter {path} was made for another target ({made_for[:12]}, this one is {files.fingerprint[:12]}).",
            hint="Name its target with --target.",
        )
    return checkpoint


def companion_named(name: str, progress: Progress) -> ModelFiles | None:
    """The companion that `companion:SPEC` means; None: it is another kind of subject."""
    return find_companion(name.removeprefix(PREFIX), progress=progress) if name.startswith(PREFIX) else None


def stop_tokens(files: ModelFiles) -> set[int]:
    return set(end_of_text(files, load_tokenizer(files).eos_token_id))


def load_subject(
    name: str,
    files: ModelFiles,
    execution: str,
    sampling: Sampling,
    progress: Progress,
    *,
    weights: str = "int8",
    guarded: bool = True,
) -> Subject:
    """A checkpoint or companion with the target `files`, prompt look-up, or plain steps."""
    stop_ids, companion = stop_tokens(files), companion_named(name, progress)
    if name in (LOOKUP, NONE):
        return LookupSubject(load_reader(files, 0, execution, progress), stop_ids)
    if companion is not None:
        if weights == "int4":
            raise ConfigError(
                f"A companion's weights are as its file has them, not {weights}.", hint="Give another file of it."
            )
        loaded = load_companion(companion, files, progress=progress, weights=weights)
        reader = load_reader(files, 0, execution, progress)
        subject: DrafterSubject = CompanionSubject(loaded, reader, stop_ids, sampling)
        subject.confidence = confidence_beside(companion, files, cache_root())
        return subject
    path = find_checkpoint(name, files)
    checkpoint = load_fitting_checkpoint(path, files)
    config = checkpoint.config
    reader = load_reader(files, config.reused_layers, execution, progress, config.state_entries)
    subject = DrafterSubject(
        checkpoint, reader, WeightReader(files), weights, stop_ids, guarded=guarded, sampling=sampling
    )
    subject.confidence = confidence_for(checkpoint.fingerprint, path)
    return subject
