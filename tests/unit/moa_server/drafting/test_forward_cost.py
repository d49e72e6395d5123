"""What a forward is expected to take."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting.forward_cost import ForwardCost, RowShares, RunningCost

# Of a 1B in Q4_K_M on one core with AVX-512 VNNI: the first row is free, and from the eighth on each takes as long.
STEP_MS = 33.0
TIMES = ((2, 33.0), (4, 43.0), (8, 68.0), (16, 136.0), (32, 272.0))


def test_what_rows_take_is_known_from_the_start() -> None:
    shares = RowShares.of_times(STEP_MS, TIMES)
    for rows, ms in TIMES:
        assert STEP_MS * (1 + shares.of(rows - 1)) == pytest.approx(ms, rel=0.01)
    assert STEP_MS * (1 + shares.of(5)) == pytest.approx(43.0 + (68.0 - 43.0) / 2)
    assert STEP_MS * (1 + shares.of(63)) == pytest.approx(2 * 272.0)


def test_a_row_that_was_free_at_the_start_can_still_become_dear() -> None:
    cost = ForwardCost(RowShares.of_times(10.0, [(2, 10.0), (32, 10.0)]))
    cost.add(0, 10.0)
    assert cost.ms(8) == pytest.approx(10.35, rel=0.01)
    for number in range(60):
        cost.add(number % 16, 10.0 + number % 16)
    assert cost.ms(8) == pytest.approx(18.0, rel=0.12)


@given(st.lists(st.tuples(st.integers(0, 64), st.floats(1.0, 500.0)), min_size=1, max_size=30))
def test_more_nodes_never_cost_less(forwards: list[tuple[int, float]]) -> None:
    cost = ForwardCost()
    cost.add(0, 50.0)
    for nodes, ms in forwards:
        cost.add(nodes, ms)
    costs = [cost.ms(nodes) for nodes in range(65)]
    assert costs == sorted(costs)
    assert costs[0] > 0


def after(start: tuple[float, float], rows: Sequence[int], step_ms: float, row_ms: float) -> RunningCost:
    """What is told after 40 times these forwards on a machine of these times."""
    cost = RunningCost(*start)
    for _ in range(40):
        for count in rows:
            cost.add(count, step_ms + row_ms * count)
    return cost


def test_one_slow_forward_changes_little_of_what_is_told() -> None:
    cost = after((50.0, 2.0), [0, 8], 50.0, 2.0)
    cost.add(0, 5000.0)
    assert cost.step_ms < 1.1 * 50.0


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
