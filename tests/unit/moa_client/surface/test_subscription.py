from __future__ import annotations

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


async def test_a_reader_that_lags_too_far_is_cut_off_for_good() -> None:
    subscription = Subscription(most_unread=3)
    for update in numbered(4):
        subscription.push(update)
    for _ in range(2):
        with raises(OverloadedError, snapshot("More than 3 events were not read. Open the conversation again.")):
            await read_all(subscription)
        subscription.push(*numbered(1))
