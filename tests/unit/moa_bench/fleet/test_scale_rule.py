"""How many replicas a load needs."""

from __future__ import annotations

import pytest
from moa_bench.fleet.scale_rule import EACH, PATIENCE, ScaleRule, answers_under_way


def test_answers_follow_from_a_load() -> None:
    load = 3 * 0.5 / (10.0 + 3 * 0.5)  # as a server with three answers tells it
    assert answers_under_way(load, 10.0, 0.5) == pytest.approx(3)
    assert answers_under_way(0.0, 10.0, 0.5) == 0
    assert answers_under_way(0.5, 10.0, 0.0) == 0  # a server that does not tell what a row takes


def test_replicas_come_one_at_a_time_and_no_more_than_there_may_be() -> None:
    rule = ScaleRule(1, 3)
    assert [rule.decide(5 * EACH, replicas) for replicas in (1, 2, 3)] == [2, 3, 3]


def test_one_goes_only_after_some_looks_in_a_row() -> None:
    rule = ScaleRule(1, 3)
    assert [rule.decide(0.0, 3) for _ in range(PATIENCE - 1)] == [3] * (PATIENCE - 1)
    assert rule.decide(3 * EACH, 3) == 3  # the load is back: it counts from the beginning
    assert [rule.decide(0.0, 3) for _ in range(PATIENCE)] == [3] * (PATIENCE - 1) + [2]
    assert [rule.decide(0.0, 1) for _ in range(PATIENCE)] == [1] * PATIENCE
