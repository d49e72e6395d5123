"""What a training run leaves on the disk to be resumed from: one file, replaced whole.

Written to a partial file, flushed, then renamed, so that a kill at any point leaves the last whole one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from moa_shared.errors import CheckpointError, ConfigError, DiskFullError
from moa_shared.programs.atomic import whole_file
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

NAME = "training_state.safetensors"
LOCK = ".fit.lock"
_KEY = "moa_run"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has come.

    Args:
        step: updates done. epoch, batch: the next batch. tokens: seen by all processes. seconds: of running time.
        identity: hash of the settings and data that the run was begun with.
    """

    identity: str
    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Keeps other runs out of an output folder."""
    import filelock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK, blocking=False):
            yield
    except filelock.Timeout:
        raise ConfigError(
            f"Another run is training into {folder}.", hint="Wait for it, or give this run another output folder."
        ) from None


def save_state(folder: Path, position: Position, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the state; raises DiskFullError if there is no room, and the last whole state stays."""
    path = folder / NAME
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with whole_file(path, durable=True) as partial:
            save_file(content, partial, {_KEY: json.dumps(asdict(position))})
    except (OSError, SafetensorError) as error:
        raise DiskFullError(
            f"The training state {path} cannot be written ({error}); the last whole one is kept.",
            hint="Free some space and start the same command again: it continues from there.",
        ) from None


def load_state(folder: Path, identity: str) -> tuple[Position, dict[str, torch.Tensor]] | None:
    """The last whole state; None where there is none."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            position = Position(**json.loads((file.metadata() or {})[_KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The training state {path} is damaged ({error}).", hint="Delete it to begin again, or restore a copy."
        ) from None
    if position.identity != identity:
        raise CheckpointError(
            f"The training state {path} belongs to a run with other settings or data.",
            hint="Give this run another output folder, or delete that file to begin again.",
        )
    return position, tensors
