"""The picture of one user's speed over round trips."""

from __future__ import annotations

from pathlib import Path

import pytest
from moa_bench.network.picture import bars, draw_ratios
from moa_bench.report.spread import Spread

RATIOS = [(0.0, Spread.of([1.0, 1.5, 2.0])), (150.0, Spread.of([0.9, 1.0, 1.1]))]


def test_bars_go_from_quartile_to_quartile() -> None:
    below, above = bars(RATIOS)
    assert below == [pytest.approx(0.25), pytest.approx(0.05)]
    assert above == [pytest.approx(0.25), pytest.approx(0.05)]


def test_it_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = draw_ratios(
        {"the server drafts": RATIOS, "the device drafts": RATIOS[:1]}, "A target", tmp_path / "a.png"
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
