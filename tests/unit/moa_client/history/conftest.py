"""What the tests of histories share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moa_client.history.store import HistoryStore

from tests.unit.moa_client.history.ticking_clock import TickingClock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    made = HistoryStore(tmp_path / "history", TickingClock())
    yield made
    made.close()
