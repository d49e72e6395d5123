"""Measurements in turn, with a clock that the test moves."""

from __future__ import annotations

import gc

import pytest
from moa_bench.report.interleave import time_interleaved


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_cases_take_turns_and_each_is_timed_alone() -> None:
    clock, order = Clock(), []

    def case(name: str, seconds: float) -> None:
        order.append(name)
        clock.now += seconds

    def reset() -> None:
        clock.now += 1000.0  # is not timed

    taken = time_interleaved(
        {"a": lambda: case("a", 0.001), "b": lambda: case("b", 0.002), "c": lambda: case("c", 0.003)},
        3,
        reset=reset,
        warm_up=1,
        clock=clock,
    )
    assert {name: [round(ms, 6) for ms in values] for name, values in taken.items()} == {
        "a": [1.0] * 3,
        "b": [2.0] * 3,
        "c": [3.0] * 3,
    }
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"


def test_the_collector_comes_back_after_an_error() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        time_interleaved({"fails": fail}, 1)
    assert gc.isenabled()
