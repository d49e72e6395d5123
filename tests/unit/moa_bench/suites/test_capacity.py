"""Users of one server: what they ask, in a closed loop, what they met, and the tables of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_bench.registry import KINDS, CapacityEffort
from moa_bench.suites.capacity import tables
from moa_bench.suites.capacity.figures import (
    Strategy,
    UserAnswer,
    UsersAt,
    UsersCell,
    UserStats,
    jain,
    make_strategies,
    user_rates,
    users_at,
)
from moa_bench.suites.capacity.measure import length_at, make_questions
from moa_bench.suites.capacity.users import run_users
from moa_shared.errors import ConfigError, DataError, UnavailableError

PLAIN, ORACLE, SHIPPED = Strategy("plain"), Strategy("oracle", 0.8), Strategy("shipped")
QUESTIONS = [[[1], [1, 2]], [[3], [3, 4]]]
PASSAGE = list(range(700))


class Turns:
    """An asker that answers after so many turns of the loop; it fails at question `fails`."""

    def __init__(self, turns: int, fails: int = -1) -> None:
        self.asked: list[tuple[int, ...]] = []
        self._turns = turns
        self._fails = fails

    async def ask(self, prompt: Sequence[int], answer: UserAnswer) -> None:
        if len(self.asked) == self._fails:
            raise UnavailableError("The server is full.")
        self.asked.append(tuple(prompt))
        for _ in range(self._turns):
            await asyncio.sleep(0)
        answer.on_tokens(answer.asked_s + 1.0, [7])

    async def close(self) -> None:
        pass


async def test_each_question_is_asked_once() -> None:
    quick, slow = Turns(1), Turns(20)
    answers, ended_s = await run_users([quick, slow], QUESTIONS, None)
    assert (quick.asked, slow.asked) == ([(1,), (1, 2)], [(3,), (3, 4)])
    assert {(answer.user, answer.question) for answer in answers} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert all(answer.tokens == [7] and answer.asked_s < ended_s for answer in answers)


@pytest.mark.parametrize("waits_for_all", [False, True])
async def test_on_a_slow_machine_all_ask_until_an_answer_is_whole_or_each_has_one(waits_for_all: bool) -> None:
    quick, slow = Turns(50), Turns(400)
    answers, _ = await run_users([quick, slow], QUESTIONS, 0.0, waits_for_all=waits_for_all)
    assert {answer.user for answer in answers if answer.is_whole} == ({0, 1} if waits_for_all else {0})


async def test_users_ask_again_until_all_break_off() -> None:
    quick, never = Turns(1), Turns(1 << 60)
    answers, _ = await run_users([quick, never], QUESTIONS, 0.05)
    assert quick.asked[:3] == [(1,), (1, 2), (1,)]
    assert never.asked == [(3,)]
    assert [answer.tokens for answer in answers if answer.user == 1] == [[]]


async def test_users_begin_one_after_the_other_and_think() -> None:
    askers = [Turns(1), Turns(1)]
    answers, ended_s = await run_users(askers, QUESTIONS, 0.05, apart_seconds=0.4, think_seconds=60.0, seed=1)
    assert [len(asker.asked) for asker in askers] == [1, 1]
    first = [answer.asked_s for answer in answers]
    assert first[1] - first[0] >= 0.15  # of 0.2
    assert ended_s - first[0] >= 0.4  # of 0.45


async def test_one_that_fails_ends_the_run() -> None:
    with pytest.raises(UnavailableError, match="The server is full"):
        await run_users([Turns(5), Turns(5, fails=1)], QUESTIONS, None)


def answered(user: int, asked_s: float, *arrivals: tuple[float, int]) -> UserAnswer:
    answer = UserAnswer(user, 0, asked_s)
    for now_s, count in arrivals:
        answer.on_tokens(now_s, range(count))
    return answer


def test_what_users_met() -> None:
    answers = [
        answered(0, 0.0, (1.0, 1), (1.1, 1), (1.2, 1), (1.2, 0)),
        answered(1, 0.0, (3.0, 1), (3.2, 2)),
        answered(1, 3.5),
    ]
    met = UserStats.of(answers, 2, 4.0)
    assert (met.tokens_per_s, met.answers, met.unserved) == (1.5, 2, 0)
    assert (met.gap_p50_ms, met.gap_p95_ms) == (100.0, 190.0)
    assert (met.first_p50_ms, met.first_p95_ms) == (2000.0, 2900.0)
    assert (met.slowest_tokens_per_s, met.median_tokens_per_s, met.fairness) == (10.0, 10.0, 1.0)
    assert met.tokens_an_arrival == 1.2


def test_speed_counts_from_when_all_ask_and_who_still_waits_is_counted() -> None:
    answers = [answered(0, 5.0, (6.0, 3), (7.0, 1), (9.0, 2)), answered(1, 6.0, (8.0, 4))]
    assert UserStats.of(answers, 2, 9.0, apart_seconds=2.0).tokens_per_s == (1 + 4 + 2) / 2.0
    met = UserStats.of([answered(0, 0.0, (1.0, 1), (1.1, 1)), answered(0, 2.0), answered(1, 0.0)], 2, 9.0)
    assert (met.unserved, met.first_p50_ms, met.fairness) == (1, 5000.0, 1.0)


def test_an_answer_in_one_piece_counts_from_its_question() -> None:
    """As a very fast machine sends them."""
    answers = [answered(0, 0.0, (2.0, 8)), answered(0, 2.0, (4.0, 8)), answered(1, 0.0, (1.0, 1), (2.0, 4))]
    for answer in answers:
        answer.on_end()
    answers += [answered(0, 4.0, (4.5, 1)), answered(2, 0.0, (4.0, 1))]  # broken off
    assert user_rates(answers) == {0: 4.0, 1: 4.0}


def test_nothing_to_measure_is_said() -> None:
    with pytest.raises(DataError, match="No answer was whole, and none had two arrivals"):
        UserStats.of([answered(0, 0.0, (1.0, 1)), answered(0, 2.0)], 1, 3.0)
    with pytest.raises(DataError, match="No user got any tokens"):
        jain([0.0, 0.0])


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=20))
def test_jains_index_is_1_for_equals_and_1_over_n_for_one_who_has_all(rates: list[float]) -> None:
    users = len(rates)
    assert 1 / users - 1e-9 <= jain(rates) <= 1 + 1e-9
    assert jain([rates[0]] * users) == pytest.approx(1.0)
    assert jain([rates[0]] + [0.0] * users) == pytest.approx(1 / (users + 1))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (5.0, UsersAt(16.0, at_least=True)),
        (15.0, UsersAt(8.0, at_least=False)),  # between 4 users at 20 and 16 at 10: 50, 66.7 and 100 ms a token
        (40.0, UsersAt(1.0, at_least=False)),
        (50.0, UsersAt(0.0, at_least=False)),
    ],
)
def test_users_at_a_rate(rate: float, expected: UsersAt) -> None:
    assert users_at(rate, [(1, 40.0), (4, 20.0), (16, 10.0)]) == expected


def test_prompts_are_of_mixed_lengths_and_the_same_however_many_users_there_are() -> None:
    assert [length_at(share, (50, 4000)) for share in (0.0, 0.5, 1.0)] == [50, 447, 4000]
    many = make_questions(PASSAGE, (50, 4000), 16, 2, seed=3)
    assert make_questions(PASSAGE, (50, 4000), 4, 2, seed=3) == many[:4] != make_questions(PASSAGE, (50, 4000), 4, 2, 4)
    lengths = [len(prompt) for user in many[:4] for prompt in user]
    assert (min(lengths) < 110, max(lengths) > 1800) == (True, True)
    assert len({prompt[0] for user in many for prompt in user}) > 24
    with pytest.raises(ConfigError, match="Prompts of 60 to 50 tokens do not exist"):
        CapacityEffort(prompt_tokens=(60, 50))


@pytest.mark.parametrize(
    ("kinds", "acceptances", "named"),
    [
        (
            KINDS,
            (0.35, 0.8),
            [
                "plain",
                "server's drafts",
                "devices' drafts, acceptance 0.35",
                "devices' drafts, acceptance 0.8",
                "devices' drafts, shipped drafter",
                "server's or devices' drafts, acceptance 0.8",
                "server's or devices' drafts, shipped drafter",
            ],
        ),
        (["plain"], (0.8,), ["plain"]),
        (["auto"], (0.35, 0.5), ["plain", "server's or devices' drafts, acceptance 0.5"]),
    ],
)
def test_plain_serving_comes_first_and_an_oracle_once_for_each_acceptance(
    kinds: Any, acceptances: tuple[float, ...], named: list[str]
) -> None:
    assert [way.name for way in make_strategies(kinds, acceptances)] == named


def met(tokens_per_s: float, slowest: float, gap_p95_ms: float = 40.0) -> UserStats:
    return UserStats(tokens_per_s, 20.0, gap_p95_ms, 100.0, 900.0, 1.0, 0.98, slowest, slowest, 8, 2)


def rendered(facts: dict[str, Any], *cells: UsersCell, **effort: Any) -> str:
    result = {"level": "int8", "links": ["loopback"], "drafter": "shipped, N = 3"}
    made = {"effort": CapacityEffort(**effort), "cells": [asdict(cell) for cell in cells]}
    return tables.render(facts | result | made)


def test_a_row_for_each_cell_and_the_users_at_each_speed(facts: dict[str, Any]) -> None:
    text = rendered(
        facts,
        UsersCell(1, PLAIN, met(50.0, 50.0), 0.01, 0),  # a forward of 20 ms
        UsersCell(1, SHIPPED, met(55.0, 55.0), 0.02, 0),
        UsersCell(16, PLAIN, met(200.0, 12.5), 0.1, 1),  # of 80: 4 for each row more
        UsersCell(16, ORACLE, met(240.0, 20.0, 60.0), 0.5, 0),
        UsersCell(16, SHIPPED, met(240.0, 20.0, 60.0), 0.5, 0),
        UsersCell(16, ORACLE, met(90.0, 20.0, 60.0), 0.5, 0, rtt_ms=50.0),
        UsersCell(16, PLAIN, met(100.0, 12.5), 0.1, 0, rtt_ms=50.0),
    )
    assert "Prompts of 50 to 4000 tokens, answers of 64, no thinking, int8, links: loopback." in text
    assert "text written for the same prompt before: 1." in text
    assert (
        "| plain | 0 | 16 | 200 | 1.00 | 4.00 | 20 | 40 | 1.00 | 100 | 900 | 12.5 | 12.5 | 0.980 | 2 | 1.00 | 10 % |"
        in text
    )
    assert "| devices' drafts, shipped drafter | 0 | 16 | 240 | 1.20 | 4.36 | 20 | 60 | 1.50 | 100 | 900 |" in text
    assert "| devices' drafts, acceptance 0.8 | 50 | 16 | 90 | 0.90 |  | 20 | 60 | 1.50 |" in text
    assert "| plain | 0 | at least 16 | at least 16 | 12.7 |  |" in text


def test_users_at_a_speed_are_compared_with_plain_serving(facts: dict[str, Any]) -> None:
    text = rendered(
        facts,
        UsersCell(4, PLAIN, met(40.0, 10.0), 0.1, 0),
        UsersCell(4, ORACLE, met(60.0, 15.0), 0.1, 0),
        UsersCell(16, PLAIN, met(32.0, 2.0), 0.1, 0),
        UsersCell(16, ORACLE, replace(met(96.0, 6.0), unserved=12), 0.1, 0),
        think_seconds=2.5,
    )
    assert "2.5 s of thinking" in text
    assert "| plain | 0 | 7 | 4 | not one | 1.00 |" in text
    assert "| devices' drafts, acceptance 0.8 | 0 | at least 16 | 8 | 4 | at least 2.29 |" in text
    assert "In 3 of 4 rows half of the users or more had no text when the 16 s were over (12 of 16 at most)" in text
