"""Users who ask one question after the other until each has had its answers: a closed loop, all there all the time.

State: the answers of all users so far. Everything runs on one event loop in one process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from moa_shared.errors import UnavailableError

from moa_bench.capacity.figures import Answer

MOST_SECONDS = 900.0  # for users to have had their answers: 64 of them take a few minutes on one core


class Asker(Protocol):
    """A user's way to an answer."""

    async def ask(self, prompt: Sequence[int], answer: Answer) -> None:
        """Has the whole answer come into `answer`.

        Raises:
            MoaError: the server refuses, or breaks off.
        """

    async def close(self) -> None:
        """Closes the connection."""


async def run_users(
    askers: Sequence[Asker],
    questions: Sequence[Sequence[Sequence[int]]],
    *,
    think_seconds: float = 0.0,
    seed: int = 0,
) -> tuple[list[Answer], float]:
    """Let all users ask at once, in turn all of their questions, until each has had an answer to each of its own.

    Args:
        questions: [users][questions] prompts.
        think_seconds: a user waits after each answer, on average so long, exponentially distributed; 0: not at all.

    Returns:
        All answers, those broken off at the end included, and the seconds from the first question to the end.

    Raises:
        MoaError: an answer failed, or they take too long.
    """
    answers: list[Answer] = []
    missing = len(askers)
    over = asyncio.Event()

    async def use(user: int, asker: Asker) -> None:
        nonlocal missing
        rng = random.Random(f"{seed}:{user}")
        for turn in count():
            if turn == len(questions[user]):
                missing -= 1
                if not missing:
                    over.set()
            if think_seconds and turn:
                await asyncio.sleep(rng.expovariate(1 / think_seconds))
            number = turn % len(questions[user])
            answer = Answer(user, number, time.perf_counter())
            answers.append(answer)
            await asker.ask(questions[user][number], answer)

    began = time.perf_counter()
    try:
        async with asyncio.timeout(MOST_SECONDS), asyncio.TaskGroup() as group:
            users = [group.create_task(use(user, asker)) for user, asker in enumerate(askers)]
            await over.wait()
            seconds = time.perf_counter() - began
            for task in users:
                task.cancel()
    except TimeoutError:
        raise UnavailableError(
            f"{len(askers)} users did not have their answers after {MOST_SECONDS:.0f} s.",
            hint="Ask for fewer tokens or users.",
        ) from None
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return answers, seconds
