"""Measurements in turn; medians, quartiles and paired ratios."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_bench.spread import Spread, collect_interleaved, paired_ratio
from moa_shared.errors import InternalError

from tests.support.messages import raises


def test_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert f"{Spread.of([2.0]):1}" == "2.0 (2.0 to 2.0)"


@given(st.lists(st.floats(0.1, 1e6), min_size=1))
def test_the_median_lies_between_the_quartiles(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) - 1e-3 <= spread.low <= spread.median <= spread.high <= max(values) + 1e-3


def test_ratios_are_of_pairs() -> None:
    # Both halves of the last pair were disturbed alike: the ratio does not see it, medians of sums would.
    assert paired_ratio([2.0, 2.0, 200.0], [1.0, 1.0, 100.0]) == Spread(2.0, 2.0, 2.0, 3)


def test_nothing_to_describe_is_an_error() -> None:
    with raises(
        InternalError,
        snapshot(
            "There are no measurements to take a spread of. This is a defect of moa: please report it with the log."
        ),
    ):
        Spread.of([])


def test_cases_take_turns() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        assert not gc.isenabled()
        order.append(name)
        return float(len(order))

    taken = collect_interleaved({name: lambda name=name: case(name) for name in "abc"}, 3, warm_up=1)  # type: ignore[misc]
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert taken == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}


def test_the_collector_comes_back_after_an_error() -> None:
    def fail() -> float:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        collect_interleaved({"fails": fail}, 1)
    assert gc.isenabled()
