"""The tiny target of these tests, and a cache folder of their own."""

from pathlib import Path

import pytest
from moa_shared.models import ModelFiles

from tests.support.tiny_training import tiny_files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    root = tmp_path_factory.mktemp("tiny")
    return tiny_files(root / "target", root / "cache")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
