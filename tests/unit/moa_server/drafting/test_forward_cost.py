"""What a forward is expected to take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting.forward_cost import ForwardCost


def test_the_line_is_found() -> None:
    cost = ForwardCost()
    assert not cost.known
    for nodes in (0, 4, 0, 10, 16, 0, 30, 2) * 6:
        cost.add(nodes, 50.0 if nodes == 0 else 49.0 + nodes)
    assert cost.known
    assert cost.ms(0) == pytest.approx(50.0)
    for nodes in (1, 8, 20, 40):
        assert cost.ms(nodes) == pytest.approx(max(50.0, 49.0 + nodes), rel=0.05)


def test_one_slow_forward_changes_little() -> None:
    cost = ForwardCost()
    for nodes in (0, 8) * 20:
        cost.add(nodes, 50.0 + nodes)
    before = cost.ms(8)
    cost.add(8, 5000.0)
    assert cost.ms(8) < 1.3 * before


@pytest.mark.parametrize("before", [0, 1, 40])
def test_plain_steps_make_good_one_slow_forward(before: int) -> None:
    cost = ForwardCost()
    cost.add(0, 20.0)
    for _ in range(before):
        cost.add(8, 23.0)
    usual = cost.ms(8)
    cost.add(8, 500.0)
    for _ in range(50):
        cost.add(0, 20.0)
    assert cost.ms(8) < 1.15 * usual


@given(st.lists(st.tuples(st.integers(0, 64), st.floats(1.0, 500.0)), min_size=1, max_size=30))
def test_more_nodes_never_cost_less(forwards: list[tuple[int, float]]) -> None:
    cost = ForwardCost()
    cost.add(0, 50.0)
    for nodes, ms in forwards:
        cost.add(nodes, ms)
    costs = [cost.ms(nodes) for nodes in range(65)]
    assert costs == sorted(costs)
    assert costs[0] > 0
