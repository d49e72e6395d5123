"""Measurements in turn; medians, quartiles and paired ratios."""

import gc

from moa_bench.machine import collect_interleaved
from moa_bench.report import Spread, paired_ratio


def test_median_and_quartiles_and_ratios_of_pairs() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert f"{Spread.of([2.0]):1}" == "2.0 (2.0 to 2.0)"
    # Both halves of the last pair were disturbed alike: the ratio does not see it, medians of sums would.
    assert paired_ratio([2.0, 2.0, 200.0], [1.0, 1.0, 100.0]) == Spread(2.0, 2.0, 2.0, 3)


def test_cases_take_turns() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        assert not gc.isenabled()
        order.append(name)
        return float(len(order))

    taken = collect_interleaved({name: lambda name=name: case(name) for name in "abc"}, 3, warm_up=1)  # type: ignore[misc]
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert taken == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}
