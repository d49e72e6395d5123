"""Assumptions: none without a source, and all of them in the table."""

from __future__ import annotations

from moa_bench.suites.scale.assumptions import OF_ALL, all_worlds, rows


def test_each_assumption_is_in_the_table_with_its_source() -> None:
    worlds = all_worlds()
    shown = rows(worlds)
    for of, what, value, kind, source in shown:
        assert all(map(str.strip, (of, what, source)))
        assert float(value.split()[0]) > 0
        assert kind in ("published", "measured", "derived", "assumed")
    assert len({tuple(row) for row in shown}) == len(shown)
    parts = {part.name for world in worlds for part in (world.gpu, world.target, world.device)}
    assert {row[0] for row in shown} == parts | {OF_ALL}


def test_a_case_shows_only_what_it_takes_in() -> None:
    world = all_worlds()[0]
    assert {row[0] for row in rows([world])} == {"Llama-3-8B", "A100 80 GB", "phone", OF_ALL}
    assert (world.gpu.bandwidth, world.target.weights, world.context) == (2.039e12, 8.03e9, 2000)
