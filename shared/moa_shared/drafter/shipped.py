"""What comes with moa for a target, and what is counted of drafters in files next to them: n-grams, confidence.

The drafters are a distribution of their own, for servers: devices fetch from them what they draft with.
"""

from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.checkpoint import CONFIG_KEY, DRAFTER_FILE, read_record, whole_checkpoint, write_record
from moa_shared.drafting.estimates import Confidence, ReliabilityCurve, TokenOrigin
from moa_shared.drafting.guesses import LONGEST_CONTEXT, NgramTable
from moa_shared.errors import CheckpointError, ConfigError, NotFoundError
from moa_shared.models.storage.tensors import map_tensors, read_metadata, write_tensors
from moa_shared.plain_text import parse_json
from moa_shared.programs.entry import install_drafters

NGRAMS_FILE = "ngrams.safetensors"
NGRAMS_TARGET_KEY = "target_fingerprint"  # in the metadata of that file, written by moa-train ngrams
PACKAGE = "moa_drafters"
DEFAULT_DRAFTER = "default"
DEEP_DRAFTER = "deep"  # reuses many more of the target's layers: slower, and better at standalone text
SHIPPED_DRAFTERS = (DEFAULT_DRAFTER, DEEP_DRAFTER)
# Tokens a forward with trees of 24 on questions held back (docs/drafters.md).
TOKENS_A_FORWARD = {DEFAULT_DRAFTER: 2.40, DEEP_DRAFTER: 3.71}


def shipped_drafter(target_fingerprint: str, name: str = DEFAULT_DRAFTER, folder: Path | None = None) -> Path | None:
    """The checkpoint made for a target, or None if none comes with moa; folders of deep drafters are called `...-deep`.

    `target_fingerprint`: hexadecimal, of moa_shared.models.ModelFiles; `folder`: holds a folder for each drafter.
    """
    if folder is None and (folder := drafters_folder()) is None:
        if find_ngrams(target_fingerprint) is None:
            return None
        hint = f"Install them: {install_drafters()}."
        raise ConfigError("The drafters of the default model are not installed.", hint=hint)
    for path in sorted(folder.glob(f"*/{DRAFTER_FILE}")):
        if path.parent.name.endswith(f"-{DEEP_DRAFTER}") != (name == DEEP_DRAFTER):
            continue
        if parse_json(read_metadata(path).get(CONFIG_KEY, "{}")).get("target_fingerprint") == target_fingerprint:
            return path
    return None


def require_shipped_drafter(target_fingerprint: str, target_id: str, name: str, *, hint: str) -> Path:
    path = shipped_drafter(target_fingerprint, name)
    if path is None:
        raise NotFoundError(f"No {name} drafter comes with moa for {target_id}.", hint=hint)
    return path


def installed_drafters(target_fingerprint: str) -> dict[str, Path]:
    """The checkpoints made for a target by name; empty where the distribution is not installed, as on most devices."""
    if drafters_folder() is None:
        return {}
    return {name: path for name in SHIPPED_DRAFTERS if (path := shipped_drafter(target_fingerprint, name)) is not None}


def find_ngrams(target_fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Path | None:
    """The table of n-grams for a target: beside a drafter's checkpoint, else in the package; None: there is none."""
    paths = _candidates(NGRAMS_FILE, drafter, folder)
    return next((path for path in paths if read_metadata(path).get(NGRAMS_TARGET_KEY) == target_fingerprint), None)


def _candidates(name: str, drafter: Path | None = None, folder: Path | None = None) -> list[Path]:
    """The files of a name that there are: the one beside a drafter first, then those that come with moa."""
    beside = [] if drafter is None else [drafter.parent / name]
    ours = folder or Path(str(files("moa_shared") / "drafter" / "statistics"))  # small: devices have them too
    return [path for path in [*beside, *sorted(ours.glob(f"*/{name}"))] if path.is_file()]


def drafters_folder() -> Path | None:
    """Where the distribution has a folder for each drafter; None: it is not installed. Nothing of it is imported."""
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


_TYPES = {"contexts": "I32", "counts": "U8", "tokens": "I32", "chances": "U8"}


def ngrams_for(target_fingerprint: str, drafter: Path | None = None) -> NgramTable | None:
    path = find_ngrams(target_fingerprint, drafter)
    return load_ngrams(path) if path is not None else None


def load_ngrams(path: Path) -> NgramTable:
    if not path.is_file():
        raise CheckpointError(f"There is no table of n-grams at {path}.", hint="Make one with moa-train ngrams.")
    found = map_tensors(path)
    try:
        if {name: tensor.dtype for name, tensor in found.items()} != _TYPES:
            raise ValueError(f"tensors {sorted(found)}")
        contexts = found["contexts"].data.view(np.int32).reshape(-1, LONGEST_CONTEXT)
        counts, chances = np.array(found["counts"].data), np.array(found["chances"].data)
        return NgramTable(contexts, counts, np.array(found["tokens"].data.view(np.int32)), chances)
    except ValueError as error:
        what = f"{path} holds no table of n-grams ({error})."
        raise CheckpointError(what, hint="Make it again with moa-train ngrams.") from None


def write_ngrams(path: Path, arrays: Mapping[str, npt.NDArray[Any]], target_fingerprint: str) -> None:
    """Writes the arguments of an `NgramTable`, by name."""
    with whole_checkpoint(path, "table of n-grams") as partial:
        write_tensors(partial, arrays, {NGRAMS_TARGET_KEY: target_fingerprint})


CONFIDENCE_FILE = "confidence.json"
FINGERPRINT_KEY = "drafter_fingerprint"


def confidence_for(fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Confidence | None:
    """A drafter's confidence, from the file beside it or among the package's; None: it was never measured."""
    found = map(read_confidence, _candidates(CONFIDENCE_FILE, drafter, folder))
    return next((confidence for made_for, confidence in found if made_for == fingerprint), None)


def read_confidence(path: Path) -> tuple[str, Confidence]:
    """The fingerprint of the drafter that a file is about, and its confidence."""

    def read(content: dict[str, Any]) -> tuple[str, Confidence]:
        shares = {origin: [float(share) for share in content["curves"][origin]] for origin in TokenOrigin}
        return str(content[FINGERPRINT_KEY]), Confidence({key: ReliabilityCurve(each) for key, each in shares.items()})

    return read_record(path, read)


def write_confidence(path: Path, confidence: Confidence, fingerprint: str) -> None:
    curves = {origin: [round(share, 4) for share in curve.shares] for origin, curve in confidence.curves.items()}
    write_record(path, {FINGERPRINT_KEY: fingerprint, "curves": curves})
