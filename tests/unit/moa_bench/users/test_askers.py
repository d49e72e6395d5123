"""Goodbyes go on by themselves, and are waited for once."""

from __future__ import annotations

import asyncio

import pytest
from moa_bench.users.askers import PendingByes


async def test_nobody_waits_for_a_goodbye_until_the_end() -> None:
    said: list[int] = []
    may_end = asyncio.Event()

    async def goodbye(number: int) -> None:
        await may_end.wait()
        said.append(number)

    farewells = PendingByes()
    for number in (1, 2):
        farewells.begin(goodbye(number))
    await asyncio.sleep(0)
    assert said == []
    may_end.set()
    await farewells.finish()
    assert said == [1, 2]


async def test_a_goodbye_that_fails_is_told_at_the_end() -> None:
    async def goodbye() -> None:
        raise ValueError("lost")

    farewells = PendingByes()
    farewells.begin(goodbye())
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError, match="lost"):
        await farewells.finish()
