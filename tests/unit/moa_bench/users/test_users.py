"""The closed loop: who asks what, when it ends, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from moa_bench.users.figures import UserAnswer
from moa_bench.users.users import run_users
from moa_shared.errors import UnavailableError

QUESTIONS = [[[1], [1, 2]], [[3], [3, 4]]]


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


async def test_on_a_slow_machine_all_ask_until_an_answer_is_whole() -> None:
    slow, never = Turns(50), Turns(1 << 60)
    answers, _ = await run_users([slow, never], QUESTIONS, 0.0)
    assert next(answer.is_whole for answer in answers if answer.user == 0)
    assert [answer.is_whole for answer in answers if answer.user == 1] == [False]


async def test_where_all_are_waited_for_each_has_a_whole_answer() -> None:
    quick, slow = Turns(1), Turns(200)
    answers, _ = await run_users([quick, slow], QUESTIONS, 0.0, waits_for_all=True)
    assert {answer.user for answer in answers if answer.is_whole} == {0, 1}


async def test_users_ask_again_until_all_break_off() -> None:
    quick, never = Turns(1), Turns(1 << 60)
    answers, _ = await run_users([quick, never], QUESTIONS, 0.05)
    assert quick.asked[:3] == [(1,), (1, 2), (1,)]
    assert never.asked == [(3,)]
    assert [answer.tokens for answer in answers if answer.user == 1] == [[]]


async def test_users_begin_one_after_the_other() -> None:
    answers, ended_s = await run_users([Turns(1), Turns(1)], QUESTIONS, 0.05, apart_seconds=0.4)
    first = [min(answer.asked_s for answer in answers if answer.user == user) for user in (0, 1)]
    assert first[1] - first[0] >= 0.15  # of 0.2
    assert ended_s - first[0] >= 0.4  # of 0.45


async def test_users_think_between_answers() -> None:
    asker = Turns(1)
    await run_users([asker], QUESTIONS[:1], 0.05, think_seconds=60.0, seed=1)
    assert asker.asked == [(1,)]


async def test_one_that_fails_ends_the_run() -> None:
    with pytest.raises(UnavailableError, match="The server is full"):
        await run_users([Turns(5), Turns(5, fails=1)], QUESTIONS, None)
