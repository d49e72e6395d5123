"""What the target computed for the batches of the first epoch, kept on the disk for later epochs.

Keys and values are kept in int8 with a scale for each token, layer and head (they take the room), the rest as it is.
One file a batch, up to a budget. Invariant: only the first epoch writes and only later ones read, so that a run which
was killed computes and reads what it would have.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from moa_training.data.batches import PackedBatch
from moa_training.teacher.teacher import Activations, Teacher

_SMALLEST = 1e-6  # scale of a head that is all zeros


class TeacherCache:
    """A teacher that keeps what it has computed.

    Args:
        folder: of the files; there may be some from before the run was stopped.
        budget_bytes: the most that they may take.
    """

    def __init__(self, teacher: Teacher, folder: Path, budget_bytes: int, progress: Progress) -> None:
        self._teacher, self._folder, self._budget, self._progress = teacher, folder, budget_bytes, progress
        self._full = False
        self.read = self.computed = 0  # batches

    def run_packed(self, batch: PackedBatch, epoch: int) -> Activations:
        """Activations of a packed batch that every epoch has under the same number."""
        if epoch > 0 and (kept := self._load(batch)) is not None:
            self.read += 1
            return kept
        self.computed += 1
        target = self._teacher.run_packed(batch)
        if epoch == 0 and not self._full:
            self._store(target, batch)
        return target

    def remove(self) -> None:
        """Frees the room, at the end of the run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, batch: PackedBatch) -> Path:
        return self._folder / f"{batch.number}.safetensors"

    def _store(self, target: Activations, batch: PackedBatch) -> None:
        heads = target.kv.unflatten(-1, (-1, self._teacher.head_dim))
        scales = (heads.abs().amax(-1, keepdim=True) / 127).clamp(min=_SMALLEST)
        kept = {
            "tokens": torch.stack((batch.ids, batch.segment)),
            "kv": (heads / scales).round().clamp(-127, 127).to(torch.int8),
            "scales": scales,
            "last_hidden": target.last_hidden,
            "state": target.state,
            "entries": target.entries,
        }
        tensors = {name: part.cpu().contiguous() for name, part in kept.items() if part is not None}
        if (batch.number + 1) * sum(part.nbytes for part in tensors.values()) > self._budget:
            return
        try:
            with whole_file(self._path(batch)) as partial:
                save_file(tensors, partial)
        except (OSError, SafetensorError) as error:
            self._full = True
            self._progress.note(
                f"No more activations can be kept in {self._folder} ({error}); "
                "the other batches are computed again in each epoch."
            )

    def _load(self, batch: PackedBatch) -> Activations | None:
        try:
            kept = load_file(self._path(batch), str(batch.ids.device))
        except (OSError, SafetensorError):
            return None
        if not torch.equal(kept["tokens"], torch.stack((batch.ids, batch.segment))):
            return None
        embeddings = self._teacher.embeddings[batch.ids]
        kv = (kept["kv"].to(embeddings.dtype) * kept["scales"]).flatten(3)
        return Activations(
            embeddings, kv, kept["last_hidden"], kept.get("state"), batch.positions, entries=kept.get("entries")
        )
