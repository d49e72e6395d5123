"""Assumptions: none without a source; varied one at a time."""

from __future__ import annotations

import pytest
from moa_bench.suites.scale.assumptions import Assumption, rows
from moa_bench.suites.scale.published import all_worlds
from moa_shared.errors import ConfigError


@pytest.mark.parametrize(("value", "unit", "source"), [(1.0, "ms", " "), (1.0, "", "a sheet"), (0.0, "ms", "a sheet")])
def test_an_assumption_without_source_unit_or_value_is_impossible(value: float, unit: str, source: str) -> None:
    with pytest.raises(ConfigError):
        Assumption(value, unit, "published", source)


def test_an_unknown_kind_of_figure_is_refused() -> None:
    with pytest.raises(ConfigError, match="rumoured"):
        Assumption(1.0, "ms", "rumoured", "a friend")  # type: ignore[arg-type]


def test_each_assumption_is_in_the_table_with_its_source() -> None:
    worlds = all_worlds()
    shown = {(row[1], row[4]) for row in rows(worlds)}
    for world in worlds:
        for name, each in world.assumptions().items():
            assert (name.rpartition(".")[2].replace("_", " "), each.source) in shown


def test_varying_touches_one_assumption_and_leaves_shares_below_one() -> None:
    world = all_worlds()[0]
    names = world.assumptions()
    for name in names:
        for factor in (0.5, 2.0):
            other = world.varied(name, factor).assumptions()
            assert [each for each in names if other[each] != names[each]] == [name]
            if names[name].unit == "of 1":
                assert 0 < other[name].value < 1
