"""The picture of one user's speed over round trips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_bench.drafting.compared import Drafted
from moa_bench.drafting.picture import bars, draw, ratios_of
from moa_bench.network.emulated import Link
from moa_bench.network.network import Cell
from moa_bench.report.spread import Spread

SERVER, DEVICE = "the server drafts", "the device drafts"
FAST, SLOW = Spread(1.5, 1.25, 2.0, 3), Spread(1.0, 0.9, 1.1, 3)
LINKS = (Link("RTT 300 ms", 150.0), Link("RTT 0"))


def row(link: str, way: str, ratio: Spread | None) -> Drafted:
    cell = Cell(link, None, way, ratio, ratio, ratio, Spread(20.0, 19.0, 21.0, 3), 0)
    return Drafted(cell, None, None, None, None)


ROWS = [row("RTT 300 ms", SERVER, SLOW), row("RTT 300 ms", DEVICE, None), row("RTT 0", SERVER, FAST)]


def test_lines_ascend_by_round_trip_and_leave_out_what_failed() -> None:
    assert ratios_of(ROWS, LINKS) == {SERVER: [(0.0, FAST), (300.0, SLOW)]}


def test_bars_go_from_quartile_to_quartile() -> None:
    below, above = bars([(0.0, FAST), (300.0, SLOW)])
    assert below == [pytest.approx(0.25), pytest.approx(0.1)]
    assert above == [pytest.approx(0.5), pytest.approx(0.1)]


def test_it_is_drawn(facts: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = draw(facts | {"rows": ROWS}, LINKS, tmp_path / "lone-user.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
