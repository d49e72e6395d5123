from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from moa_shared.shipped import CONFIG_KEY, shipped_drafter
from safetensors.numpy import save_file


def test_a_drafter_is_found_by_its_target(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        config = json.dumps({"target_fingerprint": f"fingerprint of {name}"})
        save_file({"x": np.zeros(1)}, tmp_path / name / "drafter.safetensors", metadata={CONFIG_KEY: config})
    assert shipped_drafter("fingerprint of two", tmp_path) == tmp_path / "two" / "drafter.safetensors"
    assert shipped_drafter("another", tmp_path) is None


def test_files_without_our_metadata_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "authors").mkdir()
    save_file({"x": np.zeros(1)}, tmp_path / "authors" / "drafter.safetensors")
    assert shipped_drafter("any", tmp_path) is None
