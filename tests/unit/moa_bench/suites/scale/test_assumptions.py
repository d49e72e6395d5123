"""Assumptions: none without a source, and all of them in the table."""

from __future__ import annotations

from moa_bench.suites.scale.assumptions import rows
from moa_bench.suites.scale.published import all_worlds


def test_each_assumption_is_in_the_table_with_its_source() -> None:
    worlds = all_worlds()
    shown = rows(worlds)
    for of, what, value, _, source in shown:
        assert all(map(str.strip, (of, what, source)))
        assert float(value.split()[0].replace(",", "")) > 0
    for world in worlds:
        for each in (world.context, world.gpu.price, world.target.memory_row, world.device.bandwidth):
            assert each.source in {row[4] for row in shown}
    assert len({tuple(row) for row in shown}) == len(shown)
