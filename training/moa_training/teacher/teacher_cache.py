"""What the target computed for the batches of the first epoch, kept on the disk for later epochs.

Keys and values are kept in int8 with a scale for each token, layer and head (they take the room), the rest as it is.
One file of fixed records, one a batch, up to a budget. Invariant: only the first epoch writes and only later ones read,
so that a run which was killed computes and reads what it would have.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from moa_shared.programs.progress import Progress

from moa_training.data.packing import PackedBatch
from moa_training.objective.network import Activations
from moa_training.teacher.teacher import Teacher

_KEY_BYTES = 16  # of the tokens' hash at a record's end; it is written last, so that a torn record does not count
_SMALLEST = 1e-6  # scale of a head that is all zeros


class TeacherCache:
    """A teacher that keeps what it has computed.

    Args:
        path: the file; it may exist, from before the run was stopped.
        budget_bytes: the most that it may take.
    """

    def __init__(self, teacher: Teacher, path: Path, budget_bytes: int, progress: Progress) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._teacher, self._path, self._budget, self._progress = teacher, path, budget_bytes, progress
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._full = False
        self.read = self.computed = 0  # batches

    def run_packed(self, batch: PackedBatch, epoch: int) -> Activations:
        """Activations of a packed batch that every epoch has under the same number."""
        if epoch > 0:
            kept = self._load(batch)
            if kept is not None:
                self.read += 1
                return kept
        self.computed += 1
        target = self._teacher.run_packed(batch)
        if epoch == 0 and not self._full:
            self._store(target, _key(batch), batch.number)
        return target

    def remove(self) -> None:
        """Frees the room, at the end of the run."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _store(self, target: Activations, key: bytes, number: int) -> None:
        heads = target.kv.unflatten(-1, (-1, self._head_dim))
        scales = (heads.abs().amax(-1, keepdim=True) / 127).clamp(min=_SMALLEST)
        parts = [(heads / scales).round().clamp(-127, 127).to(torch.int8), scales, target.last_hidden]
        parts += [part for part in (target.state, target.entries) if part is not None]
        record = b"".join(part.cpu().contiguous().view(torch.uint8).numpy().tobytes() for part in parts)
        place = number * (len(record) + _KEY_BYTES)
        if place + len(record) + _KEY_BYTES > self._budget:
            return
        try:
            _write(self._file, record, place)
            _write(self._file, key, place + len(record))
        except OSError as error:
            self._full = True
            self._progress.note(
                f"No more activations can be kept in {self._path} ({error.strerror}); "
                "the other batches are computed again in each epoch."
            )

    def _load(self, batch: PackedBatch) -> Activations | None:
        embeddings = self._teacher.embeddings[batch.ids]
        rows, length, hidden = embeddings.shape
        config = self._teacher.model.config
        layers, heads, dim = self._teacher.kv_layers, 2 * config.num_key_value_heads, self._head_dim
        shapes = [
            (torch.int8, (rows, length, layers, heads, dim)),
            (embeddings.dtype, (rows, length, layers, heads, 1)),
            (embeddings.dtype, (rows, length, hidden)),
        ]
        entries = len(self._teacher.entries)
        if self._teacher.reused_layers:
            shapes.append((embeddings.dtype, (rows, length, hidden)))
        if entries:
            shapes.append((embeddings.dtype, (rows, length, entries, hidden)))
        sizes = [dtype.itemsize * torch.Size(shape).numel() for dtype, shape in shapes]
        size = sum(sizes) + _KEY_BYTES
        record = bytearray(size)
        if os.preadv(self._file, [record], batch.number * size) < size or record[-_KEY_BYTES:] != _key(batch):
            return None
        content = torch.split_with_sizes(torch.frombuffer(record, dtype=torch.uint8)[:-_KEY_BYTES], sizes)
        parts = [
            part.clone().view(dtype).view(shape).to(embeddings.device)
            for part, (dtype, shape) in zip(content, shapes, strict=True)
        ]
        kv = (parts[0].to(embeddings.dtype) * parts[1]).flatten(3)
        return Activations(
            embeddings,
            kv,
            parts[2],
            parts[3] if self._teacher.reused_layers else None,
            batch.positions,
            entries=parts[-1] if entries else None,
        )

    @property
    def _head_dim(self) -> int:
        config = self._teacher.model.config
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _write(file: int, content: bytes, place: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(file, rest, place)
        rest, place = rest[written:], place + written


def _key(batch: PackedBatch) -> bytes:
    """Tells whose activations these are: tokens and conversations, of any batch of this shape."""
    tokens = torch.stack((batch.ids, batch.segment)).cpu().numpy().tobytes()
    return hashlib.blake2b(tokens, digest_size=_KEY_BYTES).digest()
