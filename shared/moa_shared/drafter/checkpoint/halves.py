"""Checkpoints in two files: a drafter's half on the device, and next to it what only its server runs.

The first file is the drafter that both ends name by its hash; it holds the hash of the second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from moa_shared.errors import CheckpointError
from moa_shared.models.tensors.safetensors import FileTensor, map_tensors

SERVER_HALF_FILE = "projection.safetensors"
SERVER_HALF_KEY = "moa_server_half_sha256"  # in the metadata of the device's half


def map_server_half(path: Path, metadata: Mapping[str, str]) -> dict[str, FileTensor] | None:
    """The tensors of the server's half; none for a checkpoint in one file; None where only the device's half is here.

    Args:
        path: of the device's half.

    Raises:
        CheckpointError: the file next to it is another drafter's.
        ModelSourceError: it is corrupt.
    """
    if SERVER_HALF_KEY not in metadata:
        return {}
    half = path.parent / SERVER_HALF_FILE
    if not half.is_file():
        return None
    if sha256_of(half) != metadata[SERVER_HALF_KEY]:
        raise CheckpointError(
            f"{half} is not the server's half of {path.name}.", hint="Name the drafter as it was published."
        )
    return map_tensors(half)


def sha256_of(path: Path) -> str:
    """Hexadecimal, of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
