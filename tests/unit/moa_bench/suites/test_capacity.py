"""Users of one server: what they ask, in a closed loop, what they met, and the tables of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from moa_bench.registry import CapacityEffort
from moa_bench.suites.capacity.measure import PlainAsker, make_questions, run_users
from moa_bench.suites.capacity.tables import Strategy, UserAnswer, UsersCell, UserStats, mean_cell, render, user_rates
from moa_shared.errors import ConfigError, UnavailableError

PLAIN, ORACLE, SHIPPED = Strategy("plain"), Strategy("oracle", 0.8), Strategy("shipped")
MACHINE = {"time": "2026-01-02T03:04:05+00:00", "cpu": "A CPU", "cores": 2, "packages": {"numpy": "2"}, "commit": "abc"}
FACTS = {"machine": MACHINE, "pinned": True, "target": "A target"}
QUESTIONS = [[[1], [1, 2]], [[3], [3, 4]]]
PASSAGE = list(range(700))


class Turns(PlainAsker):
    """An asker that answers after so many turns of the loop; it fails at question `fails`."""

    def __init__(self, turns: int, fails: int = -1) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.shares: list[float] = []
        self._turns = turns
        self._fails = fails

    async def ask(self, prompt: Sequence[int], answer: UserAnswer, share: float = 1.0) -> None:
        if len(self.asked) == self._fails:
            raise UnavailableError("The server is full.")
        self.asked.append(tuple(prompt))
        self.shares.append(share)
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
    assert quick.shares == slow.shares == [1.0, 1.0]


async def test_on_a_slow_machine_all_ask_until_an_answer_is_whole() -> None:
    first, second = Turns(50), Turns(1 << 60)
    answers, _ = await run_users([first, second], QUESTIONS, 0.0)
    assert {answer.user for answer in answers if answer.is_whole} == {0}
    assert (first.shares[0], round(second.shares[0], 2)) == (1.0, 0.38)  # they do not go on in step


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
    assert (met.tokens_per_s, met.unserved, met.gap_p95_ms, met.first_p50_ms) == (1.5, 0, 190.0, 2000.0)
    assert (met.slowest_tokens_per_s, met.median_tokens_per_s, met.fairness) == (10.0, 10.0, 1.0)


def test_what_counts_is_what_comes_once_all_have_text() -> None:
    answers = [answered(0, 0.0, (1.0, 1), (2.0, 1), (3.0, 1)), answered(1, 0.0, (1.5, 2), (3.5, 1))]
    assert UserStats.of(answers, 2, 4.0).tokens_per_s == 1.2


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


def test_prompts_are_of_mixed_lengths_and_the_same_however_many_users_there_are() -> None:
    many = make_questions(PASSAGE, (50, 4000), 16, 2, seed=3)
    assert make_questions(PASSAGE, (50, 4000), 4, 2, seed=3) == many[:4] != make_questions(PASSAGE, (50, 4000), 4, 2, 4)
    lengths = [len(prompt) for user in many[:4] for prompt in user]
    assert (min(lengths) < 110, max(lengths) > 1800) == (True, True)
    assert len({prompt[0] for user in many for prompt in user}) > 24
    with pytest.raises(ConfigError, match="Prompts of 60 to 50 tokens do not exist"):
        CapacityEffort(prompt_tokens=(60, 50))


def met(tokens_per_s: float, slowest: float, gap_p95_ms: float = 40.0, unserved: int = 0) -> UserStats:
    return UserStats(tokens_per_s, gap_p95_ms, 100.0, 0.98, slowest, slowest, unserved)


def test_a_cell_of_several_rounds_has_their_means() -> None:
    rounds = [UsersCell(16, PLAIN, met(speed, speed, 40.0, speed == 90.0), 0.1, 1) for speed in (90.0, 110.0)]
    assert mean_cell([asdict(each) for each in rounds]) == asdict(
        UsersCell(16, PLAIN, met(100.0, 100.0, 40.0, 1), 0.1, 2)
    )


def test_a_row_for_each_cell_next_to_plain_serving_of_the_same_users_and_links() -> None:
    cells = [
        UsersCell(1, SHIPPED, met(55.0, 55.0), 0.02, 0),
        UsersCell(16, PLAIN, met(200.0, 12.5), 0.1, 1),
        UsersCell(16, SHIPPED, met(240.0, 20.0, 60.0), 0.5, 0),
        UsersCell(16, ORACLE, met(90.0, 20.0, 60.0), 0.5, 0, rtt_ms=50.0),
        UsersCell(16, PLAIN, met(100.0, 12.5, unserved=12), 0.1, 0, rtt_ms=50.0),
    ]
    made = {"level": "int8", "drafter": "shipped, N = 3", "effort": CapacityEffort()}
    text = render(FACTS | made | {"cells": [asdict(cell) for cell in cells]})
    for part in (
        "Prompts of 50 to 4000 tokens, answers of 64, int8.",
        "text written for the same prompt before: 1.",
        "| plain | 0 | 16 | 200 | 1.00 |  | 40 | 1.00 | 100 | 12.5 | 12.5 | 0.980 | 0 | 10 % |",
        "| devices' drafts, shipped drafter | 0 | 16 | 240 | 1.20 | 4.36 | 60 | 1.50 | 100 |",
        "| devices' drafts, acceptance 0.8 | 50 | 16 | 90 | 0.90 |  | 60 | 1.50 |",
        "In 1 of 5 rows half of the users or more had no text when the 16 s were over (12 of 16 at most)",
    ):
        assert part in text
