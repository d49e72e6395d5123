"""Who waits for a draft while a forward runs: whose row costs more than it brings, and never twice in a row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from moa_bench.simulation.waiting import DueDraft, choose_waiting
from moa_server.drafting.forward_cost import ForwardCost

RATE = 0.8  # tokens a millisecond


@pytest.fixture
def cost() -> ForwardCost:
    """A forward of 10 ms and one more for each row beyond the first."""
    cost = ForwardCost(node_share=0.1)
    cost.add(0, 10.0)
    for rows in (5, 10, 20) * 40:
        cost.add(rows, 10.0 + rows)
    return cost


def drafts(number: int, after_ms: float = 5.0) -> list[DueDraft]:
    """Sessions whose drafts have come after a verdict at 0 ms, always as late."""
    made = [DueDraft() for _ in range(number)]
    for draft in made:
        for _ in range(20):
            draft.on_draft(after_ms)
    return made


def waiting(made: Sequence[DueDraft], right: float | None, rows: int, now_ms: float, cost: ForwardCost) -> list[bool]:
    choose_waiting([(draft, right) for draft in made], rows, now_ms, RATE, cost)
    return [draft.waits for draft in made]


def test_a_good_drafter_is_waited_for_and_a_bad_one_is_not(cost: ForwardCost) -> None:
    assert waiting(drafts(3), 0.9, 8, 0.0, cost) == [True] * 3
    assert waiting(drafts(3), 0.1, 8, 0.0, cost) == [False] * 3  # 0.9 of a token is lost for a row worth 0.8


def test_nobody_waits_twice_in_a_row(cost: ForwardCost) -> None:
    made = drafts(3)
    assert [waiting(made, 0.9, 8, 0.0, cost)[0] for _ in range(4)] == [True, False, True, False]


def test_somebody_steps(cost: ForwardCost) -> None:
    assert waiting(drafts(9), 0.9, 8, 0.0, cost) == [True] * 8 + [False]


def test_nodes_that_have_come_are_not_waited_for(cost: ForwardCost) -> None:
    assert waiting(drafts(1), None, 8, 0.0, cost) == [False]


def test_only_drafts_that_come_during_the_forward_are_waited_for(cost: ForwardCost) -> None:
    late, unknown = drafts(1, after_ms=40.0), [DueDraft()]
    assert waiting(late, 0.9, 8, 0.0, cost) == [False]
    assert waiting(late, 0.9, 8, 25.0, cost) == [True]
    assert waiting(unknown, 0.9, 8, 0.0, cost) == [False]
