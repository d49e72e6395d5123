"""A target large enough for the kernels, which compute its drafters many times as fast as numpy does."""

import pytest
from moa_shared.models import ModelFiles

from tests.support.tiny_training import tiny_files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    root = tmp_path_factory.mktemp("tiny")
    return tiny_files(root / "target", root / "cache", sizes={})
