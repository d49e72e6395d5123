"""What is counted of a target or drafter, in files beside the checkpoint: n-grams, and confidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.checkpoint.checkpoint import whole_checkpoint, write_record
from moa_shared.drafter.checkpoint.shipped import NGRAMS_TARGET_KEY, companions, find_ngrams
from moa_shared.drafting.estimates import Confidence, ReliabilityCurve, TokenOrigin
from moa_shared.drafting.guesses import LONGEST_CONTEXT, NgramTable
from moa_shared.errors import CheckpointError
from moa_shared.models.storage.tensors import map_tensors, write_tensors
from moa_shared.plain_text import parse_json

_TYPES = {"contexts": "I32", "counts": "U8", "tokens": "I32", "chances": "U8"}


@dataclass(frozen=True, slots=True)
class NgramArrays:
    """The arrays of an `NgramTable`, in its order."""

    contexts: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]
    chances: npt.NDArray[np.uint8]


def ngrams_for(target_fingerprint: str, drafter: Path | None = None) -> NgramTable | None:
    """The table for a target: the one beside a drafter, else the package's; None: there is none."""
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
        raise CheckpointError(
            f"{path} holds no table of n-grams ({error}).", hint="Make it again with moa-train ngrams."
        ) from None


def write_ngrams(path: Path, arrays: NgramArrays, target_fingerprint: str) -> None:
    with whole_checkpoint(path, "table of n-grams") as partial:
        tensors = {name: getattr(arrays, name) for name in _TYPES}
        write_tensors(partial, tensors, {NGRAMS_TARGET_KEY: target_fingerprint})


CONFIDENCE_FILE = "confidence.json"
FINGERPRINT_KEY = "drafter_fingerprint"


def confidence_for(fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Confidence | None:
    """A drafter's confidence, from the file beside it or among the package's; None: it was never measured."""
    for path in companions(CONFIDENCE_FILE, drafter, folder):
        made_for, confidence = read_confidence(path)
        if made_for == fingerprint:
            return confidence
    return None


def read_confidence(path: Path) -> tuple[str, Confidence]:
    """The fingerprint of the drafter that a file is about, and its confidence."""
    try:
        content: Any = parse_json(path.read_text("utf-8"))
        shares = {origin: [float(share) for share in content["curves"][origin]] for origin in TokenOrigin}
        curves = {origin: ReliabilityCurve(each) for origin, each in shares.items()}
        return str(content[FINGERPRINT_KEY]), Confidence(curves)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} does not say how far a drafter can be trusted ({error}).",
            hint="Make it again with moa-train calibrate.",
        ) from None


def write_confidence(path: Path, confidence: Confidence, fingerprint: str) -> None:
    curves = {origin: [round(share, 4) for share in curve.shares] for origin, curve in confidence.curves.items()}
    write_record(path, {FINGERPRINT_KEY: fingerprint, "curves": curves})
