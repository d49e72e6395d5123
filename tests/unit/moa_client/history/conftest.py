"""What the tests of histories share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from moa_client.history.store import HistoryStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    made = HistoryStore(tmp_path / "history", count(1000.0).__next__)
    yield made
    made.close()
