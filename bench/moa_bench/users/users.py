"""Users who ask one question after the other, in a closed loop: all are there all the time.

Everything runs on one event loop in one process.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Protocol

from moa_bench.users.figures import UserAnswer


class UserAsker(Protocol):
    """A user's way to an answer."""

    async def ask(self, prompt: Sequence[int], answer: UserAnswer) -> None:
        """Has the whole answer come into `answer`."""

    async def close(self) -> None:
        """Closes the connection."""


async def run_users(
    askers: Sequence[UserAsker],
    questions: Sequence[Sequence[Sequence[int]]],
    seconds: float | None,
    *,
    apart_seconds: float = 0.0,
    think_seconds: float = 0.0,
    waits_for_all: bool = False,
    seed: int = 0,
) -> tuple[list[UserAnswer], float]:
    """Let all users ask, each its own questions in turn.

    Args:
        questions: [users][questions] prompts.
        seconds: from when all ask until all break off, or longer, until one answer says how fast text comes; None: each
            question is asked once, and nothing is broken off.
        apart_seconds: in which they begin, one after the other; 0: all at once.
        think_seconds: a user waits after each answer, on average so long, exponentially distributed; 0: not at all.
        waits_for_all: or longer, until each user has had a whole answer.

    Returns:
        All answers, those broken off included, and when the users ended, on the clock of the answers.
    """
    answers: list[UserAnswer] = []
    has_rate, all_had_one = asyncio.Event(), asyncio.Event()
    without = set(range(len(askers)))  # users who have not had a whole answer

    async def use(user: int, asker: UserAsker) -> None:
        rng = random.Random(f"{seed}:{user}")
        await asyncio.sleep(apart_seconds * user / len(askers))
        own = questions[user]
        turns: Iterator[int] = iter(range(len(own))) if seconds is None else count()
        for turn in turns:
            if think_seconds and turn:
                await asyncio.sleep(rng.expovariate(1 / think_seconds))
            answer = UserAnswer(user, turn % len(own), time.perf_counter(), on_rate=has_rate.set)
            answers.append(answer)
            await asker.ask(own[turn % len(own)], answer)
            answer.on_end()
            without.discard(user)
            if not without:
                all_had_one.set()

    try:
        async with asyncio.TaskGroup() as group:
            users = [group.create_task(use(user, asker)) for user, asker in enumerate(askers)]
            if seconds is None:
                await asyncio.wait(users)
            else:
                await asyncio.sleep(apart_seconds + seconds)
                await has_rate.wait()  # on a slow machine the first prompts take longer
                if waits_for_all:
                    await all_had_one.wait()
            ended_s = time.perf_counter()
            for task in users:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return answers, ended_s
