"""The published drafters in the hub's cache that fit a target. Only headers are read, and pickled files whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE
from moa_shared.drafter.choice.choosing import Candidate
from moa_shared.drafter.choice.known import Kind, known_drafter
from moa_shared.drafter.choice.measured import recall_trial
from moa_shared.drafter.published.files import PICKLED, PublishedFiles
from moa_shared.drafter.published.layouts import convert
from moa_shared.drafter.published.named_target import named_target
from moa_shared.errors import CheckpointError, MoaError
from moa_shared.models.library.places import hub_snapshots
from moa_shared.models.sources.hub_client import hub_cache
from moa_shared.models.tensors.safetensors import read_metadata

_MOST_LAYERS = 8  # of a drafter: DFlash has up to eight
# What is no drafter, one for another target, of a layout that is not known, or with a config.json that makes no sense.
_NO_DRAFTER = (MoaError, OSError, LookupError, TypeError, ValueError)
_SIZES = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "target_layers": "num_hidden_layers"}


def served_name(spec: str) -> str:
    """The name by which clients know a drafter that a user names like this."""
    return Path(spec).absolute().name.removesuffix(".safetensors")  # absolute: "." has no name


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
    """What a snapshot is.

    Raises:
        MoaError: it is no drafter for this target.
    """
    if (snapshot / DRAFTER_FILE).is_file():
        return _examine_own(name, snapshot, target, fingerprint)
    published = PublishedFiles.of(snapshot)
    config = published.config()
    if any(path.suffix in PICKLED for path in published.weights):
        _check_pickled(config, target, name)
    conversion = convert(published.shapes(), config, target, "the target", name)
    known = known_drafter(name)
    kind = known.kind if known is not None else Kind(conversion.config.kind)
    return Candidate(name, snapshot, kind, named_target(config))


def _examine_own(name: str, snapshot: Path, target: Mapping[str, Any], fingerprint: str) -> Candidate:
    config = DrafterConfig.from_json(read_metadata(snapshot / DRAFTER_FILE).get(CONFIG_KEY, ""))
    fits = all(getattr(config, own) == target.get(of_target) for own, of_target in _SIZES.items())
    if not fits or (config.target_fingerprint and config.target_fingerprint != fingerprint):
        raise CheckpointError("It is for another target.")
    return Candidate(name, snapshot, Kind(config.kind), is_of_target=bool(config.target_fingerprint))


def _check_pickled(config: Mapping[str, Any], target: Mapping[str, Any], name: str) -> None:
    """Refuses what its config.json says is no drafter for the target: to look at its tensors is to read them all."""
    layers, hidden = config.get("num_hidden_layers", 1), int(target["hidden_size"])
    if not isinstance(layers, int) or layers > _MOST_LAYERS:
        raise CheckpointError(f"{name} is a whole model.")
    if hidden not in (config.get("hidden_size"), config.get("target_hidden_size")):
        raise CheckpointError(f"{name} is for another target.")
