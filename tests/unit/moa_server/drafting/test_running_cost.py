"""What clients are told that forwards take: right after a wrong beginning, in either direction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting.running_cost import RunningCost


def after(start: tuple[float, float], rows: Sequence[int], step_ms: float, row_ms: float) -> RunningCost:
    """What is told after 40 times these forwards on a machine of these times."""
    cost = RunningCost(*start)
    for _ in range(40):
        for count in rows:
            cost.add(count, step_ms + row_ms * count)
    return cost


@pytest.mark.parametrize("start", [(50.0, 2.0), (200.0, 8.0), (10.0, 0.4), (200.0, 0.0)])
def test_the_times_are_found_whatever_was_measured_at_the_start(start: tuple[float, float]) -> None:
    cost = after(start, (0, 3, 12, 30), 50.0, 2.0)
    assert (cost.step_ms, cost.row_ms) == pytest.approx((50.0, 2.0), rel=0.1)


@pytest.mark.parametrize("rows", [0, 7])
def test_forwards_that_are_all_alike_scale_both(rows: int) -> None:
    """No plain step is among them if every answer has drafts."""
    cost = after((200.0, 8.0), [rows], 50.0, 2.0)
    assert (cost.step_ms, cost.row_ms) == pytest.approx((50.0, 2.0), rel=0.15)


def test_one_slow_forward_changes_little() -> None:
    cost = after((50.0, 2.0), [0, 8], 50.0, 2.0)
    cost.add(0, 5000.0)
    assert cost.step_ms < 1.1 * 50.0


def test_nothing_is_told_where_nothing_was_measured_at_the_start() -> None:
    cost = after((0.0, 0.0), [0, 8], 50.0, 2.0)
    assert (cost.step_ms, cost.row_ms) == (0.0, 0.0)


@given(
    st.floats(0.01, 500.0),
    st.floats(0.0, 50.0),
    st.lists(st.tuples(st.integers(0, 500), st.floats(0.01, 5000.0)), max_size=50),
)
def test_a_time_is_never_negative(step_ms: float, row_ms: float, forwards: list[tuple[int, float]]) -> None:
    cost = RunningCost(step_ms, row_ms)
    for rows, ms in forwards:
        cost.add(rows, ms)
        assert cost.step_ms > 0
        assert cost.row_ms >= 0
