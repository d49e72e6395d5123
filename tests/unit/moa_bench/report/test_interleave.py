"""Measurements in turn."""

from __future__ import annotations

import gc
from functools import partial

import pytest
from moa_bench.report.interleave import collect_interleaved


def test_cases_take_turns_and_the_first_rounds_are_thrown_away() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return float(len(order))

    taken = collect_interleaved({name: partial(case, name) for name in "abc"}, 3, warm_up=1)
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert taken == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}


def test_the_collector_comes_back_after_an_error() -> None:
    def fail() -> float:
        assert not gc.isenabled()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        collect_interleaved({"fails": fail}, 1)
    assert gc.isenabled()
