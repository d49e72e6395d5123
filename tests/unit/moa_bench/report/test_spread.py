"""Medians, quartiles and paired ratios."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_bench.report.spread import Spread, paired_ratio
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
    with raises(
        InternalError,
        snapshot("2 measurements cannot be paired with 1. This is a defect of moa: please report it with the log."),
    ):
        paired_ratio([1.0, 2.0], [1.0])
