from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from moa_shared.drafter.checkpoint.shipped import (
    CONFIG_KEY,
    DEEP_DRAFTER,
    SHIPPED_DRAFTERS,
    find_ngrams,
    installed_drafters,
    shipped_drafter,
)
from moa_shared.errors import ConfigError
from safetensors.numpy import save_file

NAMED = {"default": "one", "deep": "one-deep"}
FINGERPRINT = "619e02713c727cf93f2a9a6a06ebd0c4e89195d9d0815189720481caa6ab31e7"  # of the default model


def test_a_drafter_is_found_by_its_target(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        config = json.dumps({"target_fingerprint": f"fingerprint of {name}"})
        save_file({"x": np.zeros(1)}, tmp_path / name / "drafter.safetensors", metadata={CONFIG_KEY: config})
    assert shipped_drafter("fingerprint of two", folder=tmp_path) == tmp_path / "two" / "drafter.safetensors"
    assert shipped_drafter("another", folder=tmp_path) is None


def test_a_deep_drafter_is_asked_for_by_name(tmp_path: Path) -> None:
    for name in ("one-deep", "one"):
        (tmp_path / name).mkdir()
        config = json.dumps({"target_fingerprint": "fingerprint"})
        save_file({"x": np.zeros(1)}, tmp_path / name / "drafter.safetensors", metadata={CONFIG_KEY: config})
    found = {name: shipped_drafter("fingerprint", name, tmp_path) for name in SHIPPED_DRAFTERS}
    assert found == {name: tmp_path / folder / "drafter.safetensors" for name, folder in NAMED.items()}
    (tmp_path / "one-deep" / "drafter.safetensors").unlink()
    assert shipped_drafter("fingerprint", DEEP_DRAFTER, tmp_path) is None


def test_files_without_our_metadata_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "authors").mkdir()
    save_file({"x": np.zeros(1)}, tmp_path / "authors" / "drafter.safetensors")
    assert shipped_drafter("any", folder=tmp_path) is None


def test_a_device_has_no_drafters_but_what_is_known_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(installed_drafters(FINGERPRINT)) == set(SHIPPED_DRAFTERS)
    monkeypatch.setattr("moa_shared.drafter.checkpoint.shipped.find_spec", lambda _: None)
    assert installed_drafters(FINGERPRINT) == {}
    assert find_ngrams(FINGERPRINT) is not None
    with pytest.raises(ConfigError, match="The drafters of the default model are not installed"):
        shipped_drafter(FINGERPRINT)
    assert shipped_drafter("of another model") is None
