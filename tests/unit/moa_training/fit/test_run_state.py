from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import moa_training.fit.run_state
import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.errors import CheckpointError, DiskFullError
from moa_training.fit.run_state import NAME, Position, load_state, save_state

from tests.support.messages import raises

POSITION = Position("id", 7, 1, 3, 900, 12.5)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    assert load_state(tmp_path, "id") is None
    save_state(tmp_path, POSITION, {"a": torch.arange(3.0)})
    loaded = load_state(tmp_path, "id")
    assert loaded is not None
    assert loaded[0] == POSITION
    assert loaded[1]["a"].tolist() == [0, 1, 2]


def test_a_full_disk_keeps_the_last_whole_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, POSITION, {"a": torch.zeros(3)})

    def full(_: Any, path: Path, __: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(moa_training.fit.run_state, "save_file", full)
    with raises(
        DiskFullError,
        snapshot(
            "The training state TMP/training_state.safetensors cannot be written ([Errno 28] No space left on device); the last whole one is kept. Free some space and start the same command again: it continues from there."
        ),
    ):
        save_state(tmp_path, Position("id", 8), {"a": torch.ones(3)})
    loaded = load_state(tmp_path, "id")
    assert loaded is not None
    assert loaded[0].step == 7
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_kill_in_the_middle_of_a_write_leaves_the_last_whole_state(tmp_path: Path) -> None:
    save_state(tmp_path, POSITION, {"a": torch.zeros(3)})
    (tmp_path / (NAME + ".partial")).write_bytes((tmp_path / NAME).read_bytes()[:40])
    loaded = load_state(tmp_path, "id")
    assert loaded is not None
    assert loaded[0].step == 7
    save_state(tmp_path, Position("id", 8), {"a": torch.ones(3)})
    loaded = load_state(tmp_path, "id")
    assert loaded is not None
    assert loaded[0].step == 8


def test_damage_and_other_runs_are_refused(tmp_path: Path) -> None:
    save_state(tmp_path, POSITION, {"a": torch.zeros(3)})
    with raises(
        CheckpointError,
        snapshot(
            "The training state TMP/training_state.safetensors belongs to a run with other settings or data. Give this run another output folder, or delete that file to begin again."
        ),
    ):
        load_state(tmp_path, "else")
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="damaged"):
        load_state(tmp_path, "id")
