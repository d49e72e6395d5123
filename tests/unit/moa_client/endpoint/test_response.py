from __future__ import annotations

import asyncio

import pytest
from inline_snapshot import snapshot
from moa_client.endpoint.endpoint import AnswerSlots
from moa_shared.errors import OverloadedError

from tests.support.messages import raises


class Guest:
    """Waits for a turn, and has it until it is told to leave."""

    def __init__(self, slots: AnswerSlots) -> None:
        self.has_turn = False
        self._leaves = asyncio.Event()
        self.task = asyncio.create_task(self._visit(slots))

    async def _visit(self, slots: AnswerSlots) -> None:
        async with slots.turn():
            self.has_turn = True
            await self._leaves.wait()
        self.has_turn = False

    async def leave(self) -> None:
        self._leaves.set()
        await self.task


async def let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_turns_are_taken_in_the_order_of_arrival() -> None:
    slots = AnswerSlots(2)
    guests = [Guest(slots) for _ in range(5)]
    for gone in range(5):
        await let_run()
        assert [guest.has_turn for guest in guests] == [gone <= number < gone + 2 for number in range(5)]
        await guests[gone].leave()


@pytest.mark.parametrize("leaver", [0, 1])
async def test_who_leaves_early_takes_nobodys_turn(leaver: int) -> None:
    slots = AnswerSlots(1)
    guests = [Guest(slots) for _ in range(3)]
    await let_run()
    guests[leaver].task.cancel()
    await let_run()
    first, second = (guest for guest in guests if guest is not guests[leaver])
    assert (first.has_turn, second.has_turn) == (True, False)
    await first.leave()
    await second.leave()


async def test_one_too_many_is_refused_until_there_is_room() -> None:
    slots = AnswerSlots(1, waiting=1)
    guests = [Guest(slots) for _ in range(2)]
    await let_run()
    with raises(OverloadedError, snapshot("1 requests wait already. Try again in a few seconds.")):
        async with slots.turn():
            pass
    await guests[0].leave()
    third = Guest(slots)
    await let_run()
    for guest in (guests[1], third):
        await guest.leave()
