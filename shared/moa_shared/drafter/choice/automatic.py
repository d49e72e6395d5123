"""`--drafter auto` for a model with which no drafter comes: the best that is on this machine. Nothing is fetched.

What has shown its worth here comes first, by how often it was right: the result of each one's trial is kept under
`<cache>/hashes`, and a record that is damaged counts as none. Then comes the more promising form. One that is not
known to be for the model is never taken, however well its sizes fit: it is listed, and the user may name it. Of what is
in the hub's cache only headers are read, and pickled files whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE
from moa_shared.drafter.choice.known import FORMS, KNOWN, Form, known_drafter, known_for
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.config import Published
from moa_shared.drafter.published.adopt import convert
from moa_shared.drafter.published.files import PICKLED, PublishedFiles
from moa_shared.drafter.published.find import drafter_in_folder, model_key, named_target
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.errors import CheckpointError, MoaError, ModelSourceError
from moa_shared.models import ModelFiles
from moa_shared.models.gguf.parts import is_gguf, read_parts
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.digest import recall, remember
from moa_shared.models.sources.hub import hub_cache, hub_snapshots
from moa_shared.models.tensors import read_metadata
from moa_shared.programs.progress import Progress, SilentProgress

_MOST_LAYERS = 8  # of a published drafter
# What is no drafter, one for another target, of a layout that is not known, or with a config.json that makes no sense.
_NO_DRAFTER = (MoaError, OSError, LookupError, TypeError, ValueError)
_SIZES = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "target_layers": "num_hidden_layers"}


class Fit(Enum):
    """What speaks for a drafter being one for a model."""

    MODEL = "model"  # the table, or its own configuration, names that model
    SIZES = "sizes"  # only that all sizes fit
    ANOTHER = "another model"  # it was trained for another model of the same sizes


@dataclass(frozen=True, slots=True)
class MeasuredDrafter:
    """The result of a trial: the tokens by which it was decided, of which the drafter's first choice was `right`, and
    the text repeats `looked_up`; `dropped`: it was worse than look-up.
    """

    tokens: int
    right: int
    looked_up: int
    dropped: bool

    @property
    def right_share(self) -> float:
        return self.right / self.tokens


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter on this machine whose sizes fit."""

    name: str  # its id on the hub
    folder: Path  # its snapshot
    form: Form
    named_target: str = ""  # the model that its configuration names; "": none
    measured: MeasuredDrafter | None = None  # how it did here; None: it was not tried
    is_of_target: bool = False  # it holds the hash of the very model that one is looked for

    def fit(self, names: Collection[str]) -> Fit:
        known = known_drafter(self.name)
        target = known.target if known is not None else self.named_target
        if self.is_of_target or not target:
            return Fit.MODEL if self.is_of_target else Fit.SIZES
        return Fit.MODEL if model_key(target) in {model_key(name) for name in names} else Fit.ANOTHER

    @property
    def reason(self) -> str:
        """Why it is taken, for a person."""
        if self.measured is not None:
            return f"it was right in {self.measured.right_share:.0%} of its guesses here"
        return f"it is on this machine, and {self.form.label} is the most promising kind of those that are"

    @property
    def order(self) -> tuple[float, int, int, str]:
        """The best one's is the least."""
        known, share = known_drafter(self.name), self.measured.right_share if self.measured is not None else 0.0
        return -share, self.form.rank, KNOWN.index(known) if known is not None else len(KNOWN), self.name


def choose_drafter(
    files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None
) -> tuple[str, Path] | None:
    """The id on the hub of the drafter to take, and its checkpoint's file; None: there is none.

    One that cannot be used after all, such as a quantised one, is passed over. Says what it takes and why, or what
    could be fetched.

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
    nothing = f"There is no drafter for {files.target_id} on this machine"
    fetchable = [each for each in known_for(names, files.config) if each.form.is_run]
    if fetchable:
        best = min(fetchable, key=lambda each: each.form.rank)
        progress.note(f"{nothing}. To fetch one: --drafter {best.hub_id} ({best.form.label}).")
    elif candidates:
        listed = f"`moa-server drafters {files.target_id}`"
        progress.note(f"{nothing} that is known to be for it; {listed} lists those that fit by their sizes.")
    else:
        progress.note(f"{nothing}, and none is known; `moa-train fit` makes one.")
    return None


def ranked(candidates: Sequence[Candidate], names: Collection[str]) -> list[Candidate]:
    """Those that may be taken for a model with these names, best first."""
    usable = (each for each in candidates if each.fit(names) is Fit.MODEL)
    return sorted(
        (each for each in usable if not (each.measured and each.measured.dropped)), key=lambda each: each.order
    )


def names_of(name: str, paths: Sequence[Path]) -> frozenset[str]:
    """By which names a model is known: its own, and those that its GGUF file, whose header is read, gives it."""
    if not paths or not is_gguf(paths[0]):
        return frozenset({name})
    try:
        header = read_parts(paths, arrays=False)[0]
    except ModelSourceError:  # it says so when it is loaded
        return frozenset({name, paths[0].name})
    said = (header.text(key) for key in ("general.name", "general.base_model.0.name"))
    return frozenset({name, paths[0].name, *filter(None, said)})


# ------------------------------------------------------------ what the cache has


def cached_drafters(config: Mapping[str, Any], fingerprint: str, root: Path) -> list[Candidate]:
    """The drafters in the hub's cache that can be converted for a target.

    Args:
        config, fingerprint: the target's; fingerprint "": not known.
        root: moa's cache folder, which knows how they did.
    """
    found = []
    for name, snapshot in hub_snapshots(hub_cache()):
        try:
            candidate = _examine(name, snapshot, config, fingerprint)
        except _NO_DRAFTER:
            continue
        found.append(replace(candidate, measured=recall_trial(root, served_name(name), fingerprint)))
    return found


def in_hub_cache(hub_id: str) -> bool:
    """Whether the hub's cache has a snapshot of an id."""
    return any(name.partition("@")[0].casefold() == hub_id.casefold() for name, _ in hub_snapshots(hub_cache()))


def _examine(name: str, snapshot: Path, target: Mapping[str, Any], fingerprint: str) -> Candidate:
    """What a snapshot is; raises one of _NO_DRAFTER if it is no drafter for this target."""
    if (snapshot / DRAFTER_FILE).is_file():
        own = DrafterConfig.from_json(read_metadata(snapshot / DRAFTER_FILE).get(CONFIG_KEY, ""))
        fits = all(getattr(own, mine) == target.get(theirs) for mine, theirs in _SIZES.items())
        if not fits or (own.target_fingerprint and own.target_fingerprint != fingerprint):
            raise CheckpointError("It is for another target.")
        return Candidate(name, snapshot, FORMS[own.kind], is_of_target=bool(own.target_fingerprint))
    published = PublishedFiles.of(snapshot)
    config = published.config()
    if any(path.suffix in PICKLED for path in published.weights):  # to look at its tensors is to read them all
        layers, hidden = config.get("num_hidden_layers", 1), int(target["hidden_size"])
        if not isinstance(layers, int) or layers > _MOST_LAYERS:
            raise CheckpointError(f"{name} is a whole model.")
        if hidden not in (config.get("hidden_size"), config.get("target_hidden_size")):
            raise CheckpointError(f"{name} is for another target.")
    ours, _ = convert(Published(published.shapes(), config, target, "the target", name))
    known = known_drafter(name)
    form = known.form if known is not None else FORMS[ours.kind]
    return Candidate(name, snapshot, form, named_target(config))


# ------------------------------------------------------------ how they did here


def served_name(spec: str) -> str:
    """The name by which clients know a drafter that a user names like this."""
    return Path(spec).absolute().name.removesuffix(".safetensors")  # absolute: "." has no name


def remember_trial(root: Path, name: str, target_fingerprint: str, trial: DrafterTrial) -> None:
    """Keeps the result of a trial that is decided, of a drafter as the server calls it."""
    counts = {"tokens": trial.tokens, "right": trial.right, "looked_up": trial.looked_up}
    remember(root, _key(name, target_fingerprint), {**counts, "dropped": trial.is_dropped})


def recall_trial(root: Path, name: str, target_fingerprint: str) -> MeasuredDrafter | None:
    """The result kept; None: there is none."""
    known = recall(root, _key(name, target_fingerprint))
    counts = [known.get(field) for field in ("tokens", "right", "looked_up")]
    if not all(isinstance(count, int) and count >= 0 for count in counts) or not known["tokens"]:
        return None
    return MeasuredDrafter(known["tokens"], known["right"], known["looked_up"], known.get("dropped") is True)


def _key(name: str, target_fingerprint: str) -> str:
    return f"trial-{hashlib.sha256(f'{name} {target_fingerprint}'.encode()).hexdigest()[:32]}"
