"""Rates, gaps, first tokens, fairness, and how many users a speed allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_bench.users.figures import UserAnswer, UsersAt, UserStats, jain, user_rates, users_at
from moa_shared.errors import DataError


def answered(user: int, asked_s: float, *arrivals: tuple[float, int]) -> UserAnswer:
    answer = UserAnswer(user, 0, asked_s)
    for now_s, count in arrivals:
        answer.on_tokens(now_s, range(count))
    return answer


def test_a_users_rate_leaves_the_wait_for_the_first_token_out() -> None:
    answers = [
        answered(0, 0.0, (5.0, 1), (5.5, 1), (6.0, 3)),
        answered(0, 7.0, (8.0, 2), (9.0, 4)),
        answered(1, 0.0, (1.0, 1)),
    ]
    assert user_rates(answers) == {0: 4.0}


def test_what_users_met() -> None:
    answers = [
        answered(0, 0.0, (1.0, 1), (1.1, 1), (1.2, 1)),
        answered(1, 0.0, (3.0, 1), (3.2, 2)),
        answered(1, 3.5),
    ]
    met = UserStats.of(answers, 2, 4.0)
    assert (met.tokens_per_s, met.answers, met.unserved) == (1.5, 2, 0)
    assert (met.gap_p50_ms, met.gap_p95_ms) == (100.0, 190.0)
    assert (met.first_p50_ms, met.first_p95_ms) == (2000.0, 2900.0)
    assert (met.slowest_tokens_per_s, met.median_tokens_per_s, met.fairness) == (10.0, 10.0, 1.0)
    assert met.tokens_an_arrival == 1.2


def test_speed_counts_from_when_all_ask() -> None:
    answers = [answered(0, 5.0, (6.0, 3), (7.0, 1), (9.0, 2)), answered(1, 6.0, (8.0, 4))]
    assert UserStats.of(answers, 2, 9.0, apart_seconds=2.0).tokens_per_s == (1 + 4 + 2) / 2.0


def test_a_user_who_still_waits_is_counted() -> None:
    met = UserStats.of([answered(0, 0.0, (1.0, 1), (1.1, 1)), answered(0, 2.0), answered(1, 0.0)], 2, 9.0)
    assert (met.unserved, met.first_p50_ms, met.fairness) == (1, 5000.0, 1.0)


def test_an_answer_in_one_piece_counts_from_its_question() -> None:
    """As a very fast machine sends them."""
    answers = [answered(0, 0.0, (2.0, 8)), answered(0, 2.0, (4.0, 8)), answered(1, 0.0, (1.0, 1), (2.0, 4))]
    for answer in answers:
        answer.on_end()
    answers += [answered(0, 4.0, (4.5, 1)), answered(2, 0.0, (4.0, 1))]  # broken off
    assert user_rates(answers) == {0: 4.0, 1: 4.0}
    met = UserStats.of(answers[:2], 1, 4.0)
    assert (met.gap_p50_ms, met.gap_p95_ms, met.slowest_tokens_per_s, met.unserved) == (0.0, 0.0, 4.0, 0)


def test_an_answer_says_when_its_rate_is_known() -> None:
    told: list[int] = []
    streamed = UserAnswer(0, 0, 0.0, on_rate=lambda: told.append(len(streamed.tokens)))
    streamed.on_tokens(1.0, [1, 2])
    assert told == []
    streamed.on_tokens(2.0, [3])
    assert told == [3]


def test_nothing_to_measure_is_said() -> None:
    with pytest.raises(DataError, match="No answer was whole, and none had two arrivals"):
        UserStats.of([answered(0, 0.0, (1.0, 1)), answered(0, 2.0)], 1, 3.0)
    with pytest.raises(DataError, match="No user got any tokens"):
        jain([0.0, 0.0])


def test_an_arrival_without_tokens_is_none() -> None:
    assert answered(0, 0.0, (1.0, 0)).arrivals == []


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=20))
def test_jains_index_is_1_for_equals_and_1_over_n_for_one_who_has_all(rates: list[float]) -> None:
    users = len(rates)
    assert 1 / users - 1e-9 <= jain(rates) <= 1 + 1e-9
    assert jain([rates[0]] * users) == pytest.approx(1.0)
    assert jain([rates[0]] + [0.0] * users) == pytest.approx(1 / (users + 1))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (5.0, UsersAt(5.0, 16.0, at_least=True)),
        (15.0, UsersAt(15.0, 8.0, at_least=False)),  # between 4 users at 20 and 16 at 10: 50, 66.7 and 100 ms a token
        (40.0, UsersAt(40.0, 1.0, at_least=False)),
        (50.0, UsersAt(50.0, 0.0, at_least=False)),
    ],
)
def test_users_at_a_rate(rate: float, expected: UsersAt) -> None:
    assert users_at(rate, [(1, 40.0), (4, 20.0), (16, 10.0)]) == expected
