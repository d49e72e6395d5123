from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from inline_snapshot import snapshot
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Rewound
from moa_client.surface.open_conversation import Subscription
from moa_shared.errors import OverloadedError

from tests.support.messages import raises


def numbered(count: int, start: int = 0) -> list[Update]:
    return [Update(Rewound(start + index)) for index in range(count)]


async def read(subscription: Subscription, count: int) -> list[Update]:
    """The next updates, by a reader of its own."""
    got: list[Update] = []
    async with aclosing(cast("Any", subscription.updates())) as updates:
        async for update in updates:
            got.append(update)
            if len(got) == count:
                break
    return got


async def read_all(subscription: Subscription) -> list[Update]:
    return [update async for update in subscription.updates()]


async def test_updates_are_read_in_order_and_none_is_lost_between_two_readers() -> None:
    subscription = Subscription()
    for update in numbered(5):
        subscription.push(update)
    assert await read(subscription, 2) == numbered(2)
    subscription.push(*numbered(1, 5))
    assert await read(subscription, 4) == numbered(4, 2)


async def test_a_reader_waits_for_what_comes_next() -> None:
    subscription = Subscription()
    reading = asyncio.ensure_future(read(subscription, 2))
    for update in numbered(2):
        await asyncio.sleep(0)
        assert not reading.done()
        subscription.push(update)
    assert await reading == numbered(2)


async def test_a_reader_that_stops_waiting_loses_nothing() -> None:
    subscription = Subscription()
    reading = asyncio.ensure_future(read(subscription, 1))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    subscription.push(*numbered(1))
    assert await read(subscription, 1) == numbered(1)


async def test_what_came_before_the_end_is_still_read() -> None:
    subscription = Subscription()
    reading = asyncio.ensure_future(read_all(subscription))
    await asyncio.sleep(0)
    subscription.push(*numbered(1))
    subscription.close()
    assert await reading == numbered(1)
    assert await read_all(subscription) == []


async def test_a_reader_that_lags_too_far_is_cut_off_for_good() -> None:
    subscription = Subscription(most_unread=3)
    for update in numbered(4):
        subscription.push(update)
    for _ in range(2):
        with raises(OverloadedError, snapshot("More than 3 events were not read. Open the conversation again.")):
            await read_all(subscription)
        subscription.push(*numbered(1))


async def test_who_keeps_up_may_read_any_number() -> None:
    subscription = Subscription(most_unread=3)
    for start in range(0, 30, 3):
        for update in numbered(3, start):
            subscription.push(update)
        assert await read(subscription, 3) == numbered(3, start)
