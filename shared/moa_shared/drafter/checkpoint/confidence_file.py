"""Files that say how far a drafter's standalone text can be trusted: JSON beside its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moa_shared.drafter.checkpoint.shipped import companions
from moa_shared.drafter.checkpoint.writing import whole_checkpoint
from moa_shared.drafting.confidence import Confidence
from moa_shared.drafting.reliability import ReliabilityCurve
from moa_shared.drafting.written import TokenOrigin
from moa_shared.errors import CheckpointError
from moa_shared.text.json_text import parse_json

CONFIDENCE_FILE = "confidence.json"
FINGERPRINT_KEY = "drafter_fingerprint"


def confidence_for(fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Confidence | None:
    """A drafter's confidence, from the file beside it or among the package's; None: it was never measured.

    Args:
        fingerprint: of the checkpoint; files of others are passed over.
        drafter: the checkpoint's path.
        folder: holds a folder for each drafter; None: the package's own.

    Raises:
        CheckpointError: a file cannot be used.
    """
    for path in companions(CONFIDENCE_FILE, drafter, folder):
        made_for, confidence = read_confidence(path)
        if made_for == fingerprint:
            return confidence
    return None


def read_confidence(path: Path) -> tuple[str, Confidence]:
    """The fingerprint of the drafter that a file is about, and its confidence.

    Raises:
        CheckpointError: it holds no such thing.
    """
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
    """Writes a file, whole or not at all.

    Raises:
        CheckpointError: the path cannot be written.
        DiskFullError: no room.
    """
    with whole_checkpoint(path, "confidence") as partial:
        curves = {origin: [round(share, 4) for share in curve.shares] for origin, curve in confidence.curves.items()}
        content = {FINGERPRINT_KEY: fingerprint, "curves": curves}
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
