"""Whether waiting for drafts that are due pays under load: it does not."""

from __future__ import annotations

from moa_bench.simulation.waiting_suite import WaitingCell, compare, render


def test_a_core_under_load_loses_by_waiting() -> None:
    cell = compare("a core", 16, 0.5, 0.8)
    assert cell.speed < 1.0
    assert cell.gap > 1.2


def test_nobody_waits_where_rows_are_cheap_or_drafts_far() -> None:
    for cell in (compare("a GPU", 4, 0.5, 0.8), compare("a core", 16, 150.0, 0.8)):
        assert (cell.speed, cell.gap) == (1.0, 1.0)


def test_a_row_for_each_server_and_round_trip() -> None:
    cells = [
        WaitingCell("a core", users, 25.0, acceptance, 800.0, 20.0, speed, 1.5)
        for users, acceptance, speed in ((1, 0.5, 1.0), (1, 0.8, 1.0), (16, 0.5, 0.91), (16, 0.8, 0.98))
    ]
    assert render(cells).splitlines()[2:] == ["| a core, 25 ms | 1.00 | 1.50 | 0.91 to 0.98 | 1.50 |"]
