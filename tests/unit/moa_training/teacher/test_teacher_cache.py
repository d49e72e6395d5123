from __future__ import annotations

import errno
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from moa_training.data.batches import BatchStream, PackedBatch
from moa_training.data.shards import TokenRow
from moa_training.teacher.teacher import Teacher, load_teacher
from moa_training.teacher.teacher_cache import TeacherCache

ROWS = [TokenRow([5 + (index * 7 + place) % 80 for place in range(9 + index % 6)], [(2, 8)]) for index in range(24)]


def batches(count: int) -> list[tuple[int, PackedBatch]]:
    stream = BatchStream(ROWS, batch_rows=2, row_tokens=24, seed=1, repeat=True)
    return [(epoch, batch) for epoch, _, batch in islice(stream.from_position(0, 0), count)]


def load(
    files: ModelFiles, reused: int = 1, dtype: torch.dtype = torch.float32, entries: tuple[int, ...] = ()
) -> Teacher:
    return load_teacher(files, reused, dtype, torch.device("cpu"), entries)


@pytest.mark.parametrize(
    ("reused", "dtype", "entries"),
    [(1, torch.float32, ()), (0, torch.float32, ()), (2, torch.bfloat16, ()), (0, torch.bfloat16, (1, 3))],
)
def test_later_epochs_read_what_the_first_computed(
    tmp_path: Path, files: ModelFiles, reused: int, dtype: torch.dtype, entries: tuple[int, ...]
) -> None:
    teacher = load(files, reused, dtype, entries)
    cache = TeacherCache(teacher, tmp_path / "kept", 10**9, SilentProgress())
    every = batches(40)
    for epoch, batch in every:
        if epoch > 1:
            break
        target, own = cache.run_packed(batch, epoch), teacher.run_packed(batch)
        assert target.embeddings.equal(own.embeddings)
        assert target.last_hidden.equal(own.last_hidden)
        assert target.positions.equal(own.positions)
        assert (target.state is None) == (own.state is None) == (reused == 0)
        if target.state is not None and own.state is not None:
            assert target.state.equal(own.state)
        assert (target.entries is None) == (own.entries is None) == (not entries)
        if entries:
            assert target.entry_states.equal(own.entry_states)
        assert target.kv.shape == own.kv.shape
        assert (target.kv - own.kv).norm() <= 0.012 * own.kv.norm()  # half a step of 127 at the most
    first = sum(epoch == 0 for epoch, _ in every)
    assert (cache.computed, cache.read) == (first, first)
    cache.remove()
    assert not (tmp_path / "kept").exists()


def room(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_folder_stays_within_its_budget_and_what_is_not_kept_is_computed(tmp_path: Path, files: ModelFiles) -> None:
    teacher, path = load(files), tmp_path / "kept"
    whole = TeacherCache(teacher, path, 10**9, SilentProgress())
    (_, one), (_, two) = batches(2)
    whole.run_packed(one, 0)
    record = room(path)
    whole.remove()
    cache = TeacherCache(teacher, path, 2 * record - 2000, SilentProgress())
    for epoch in (0, 1):
        cache.run_packed(one, epoch)
        cache.run_packed(two, epoch)
    assert room(path) == record
    assert (cache.computed, cache.read) == (3, 1)


def test_records_of_other_text_and_torn_ones_are_computed_again(tmp_path: Path, files: ModelFiles) -> None:
    teacher, path = load(files), tmp_path / "kept"
    cache = TeacherCache(teacher, path, 10**9, SilentProgress())
    (_, one), (_, two) = batches(2)
    cache.run_packed(one, 0)
    other = PackedBatch(two.ids, two.positions, two.segment, two.answer, one.number)
    assert cache.run_packed(other, 1).kv.equal(teacher.run_packed(other).kv)
    os.truncate(path / "0.safetensors", 900)
    assert cache.run_packed(one, 1).kv.equal(teacher.run_packed(one).kv)
    assert cache.read == 0


def test_a_full_disk_is_reported_and_stops_no_training(
    tmp_path: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notes(SilentProgress):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def note(self, text: str) -> None:
            self.lines.append(text)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    notes = Notes()
    teacher = load(files)
    cache = TeacherCache(teacher, tmp_path / "kept", 10**9, notes)
    monkeypatch.setattr("moa_training.teacher.teacher_cache.save_file", full)
    for epoch, batch in batches(3):
        assert cache.run_packed(batch, epoch).kv.equal(teacher.run_packed(batch).kv)
    assert len(notes.lines) == 1
    assert "No space left on device" in notes.lines[0]
