"""The arithmetic of many users: against sums by hand, and its limits."""

from __future__ import annotations

import pytest
from moa_bench.users.closed_form import (
    ForwardTimes,
    best_drafted,
    expected_tokens,
    tokens_per_s,
    users_at,
    users_over_colocated,
)

TIMES = ForwardTimes(10.0, 1.0)


def test_expected_tokens() -> None:
    assert expected_tokens(0.5, 2) == 1.75
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(1.0, 5) == 6.0


def test_a_line_through_measured_times() -> None:
    times = ForwardTimes.fit([(1, 10.0), (5, 14.0), (11, 20.0)])
    assert times is not None
    assert [times.plain, times.row] == pytest.approx([10.0, 1.0])
    assert ForwardTimes.fit([(4, 10.0)]) is None
    bent = ForwardTimes.fit([(1, 10.0), (2, 10.0), (20, 400.0)])
    assert bent is not None
    assert bent.plain == bent.row > 0
    falling = ForwardTimes.fit([(1, 12.0), (3, 10.0)])
    assert falling == ForwardTimes(11.0, 0.0)  # a row never takes less than nothing


def test_one_user_drafts_much_and_many_draft_nothing() -> None:
    assert best_drafted(TIMES, 1, 0.8) > 3
    assert best_drafted(TIMES, 100, 0.8) == 0
    assert best_drafted(TIMES, 1, 0.0) == 0
    assert tokens_per_s(TIMES, 4, 0.0) == pytest.approx(1000 / 13)
    assert tokens_per_s(TIMES, 1, 0.8) == pytest.approx(
        max(1000 * expected_tokens(0.8, drafted) / (10 + drafted) for drafted in range(17))
    )


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("rate", [5.0, 20.0, 60.0])
def test_so_many_users_get_the_rate_and_no_more(acceptance: float, rate: float) -> None:
    users = users_at(TIMES, rate, acceptance)
    assert tokens_per_s(TIMES, users, acceptance) == pytest.approx(rate)
    assert tokens_per_s(TIMES, 1.01 * users, acceptance) < rate


def test_a_rate_that_nobody_gets() -> None:
    assert users_at(ForwardTimes(100.0, 5.0), 50.0, 0.0) == 0.0


def test_rows_that_cost_nothing_allow_any_number() -> None:
    assert users_at(ForwardTimes(10.0, 0.0), 5.0, 0.0) == float("inf")


def test_a_server_that_drafts_serves_fewer() -> None:
    assert users_over_colocated(4, 5.0, 20.0) == 2.0
