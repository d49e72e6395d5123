"""A surface over a socket: each of its messages is answered, and it never waits for updates that cannot come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import Committed, LinkState, Permission, Rewound, Titled
from moa_client.conversation.text_runs import Provenance, TextRun
from moa_client.surface.open_conversation import ConversationFacts, Subscription
from moa_client.surface.surface_session import serve_surface
from moa_shared.errors import OverloadedError
from moa_shared.sampling.settings import TokenChances

from tests.support.messages import raises


class Conversation:
    """One whose wishes fail by a defect."""

    facts = ConversationFacts("id", "", "tiny", "host:1", online=True)
    status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0, server="host:1")

    def __init__(self, most_unread: int = 10) -> None:
        self.answers = (AnswerText("why?", 1, committed="ab", runs=(TextRun(2, Provenance.COPY),)),)
        self.subscription = Subscription(most_unread)
        self.updates = self.subscription.updates
        self.is_closed = False

    def stop(self) -> None:
        raise ZeroDivisionError

    def set_title(self, title: str) -> None:
        self.subscription.push(Update(Titled(title)))

    def permit(self, call: str, permission: Permission) -> None:
        self.set_title(f"{call} {permission.value}")

    async def close(self) -> None:
        self.is_closed = True


class Surface:
    """What it asks, and what it was sent."""

    def __init__(self, *asked: Mapping[str, Any]) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.has_left = asyncio.Event()
        self._asked = asked

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        for each in self._asked:
            yield dict(each)
        await self.has_left.wait()

    async def send(self, fields: Mapping[str, Any]) -> None:
        self.sent.append(fields)
        if fields["event"] == "titled":
            self.has_left.set()

    async def be_served(self, conversation: Conversation, **opening: object) -> None:
        async def open_it(identifier: str | None, system: str | None, single: bool) -> Any:
            return conversation

        async with asyncio.timeout(20):
            await serve_surface(opening, self.messages(), self.send, open_it)
        assert conversation.is_closed


async def test_a_defect_in_what_was_asked_for_is_told_and_the_next_message_followed() -> None:
    surface = Surface({"do": "stop"}, {"do": "title", "title": "t"})
    await surface.be_served(Conversation())
    assert [each["event"] for each in surface.sent] == ["opened", "error", "titled"]
    assert surface.sent[1] == snapshot(
        {
            "event": "error",
            "code": "internal",
            "message": "What was asked for has failed (ZeroDivisionError).",
            "hint": "This is a defect of moa: please report it with the log.",
        }
    )


async def test_a_permission_is_taken_from_a_message_that_gives_one() -> None:
    bad = {"do": "permit", "call": "call_1", "permission": "yes"}
    surface = Surface(bad, {**bad, "call": None}, {**bad, "permission": "always"})
    await surface.be_served(Conversation())
    assert [each["event"] for each in surface.sent] == ["opened", "error", "error", "titled"]
    assert surface.sent[1]["message"] == snapshot(
        "`permit` needs the text `call`, and as `permission` one of once, always and denied."
    )
    assert surface.sent[3]["title"] == "call_1 always"


@pytest.mark.parametrize("wanted", [True, False])
async def test_who_wrote_a_text_is_told_where_it_is_wanted(wanted: bool) -> None:
    surface, conversation = Surface({"do": "title", "title": "t"}), Conversation()
    chances = (TokenChances(-0.25),)
    run = TextRun(1, Provenance.SERVER, 0.7788)
    conversation.subscription.push(Update(Committed((1,), 0, "c", chances, (1,), runs=(run,)), 1))
    await surface.be_served(conversation, runs=wanted)
    opened, committed = surface.sent[:2]
    told = [each.get("runs") for each in (opened["answers"][0], committed)]
    assert told == ([[[2, "C"]], [[1, "S", 0.779]]] if wanted else [None, None])
    assert ("chances" in committed, "lengths" in committed) == (not wanted, not wanted)


async def test_a_surface_that_lags_too_far_is_told_and_left() -> None:
    conversation = Conversation(most_unread=1)
    for _ in range(2):
        conversation.set_title("t")
    surface = Surface()
    await surface.be_served(conversation)
    assert [each["event"] for each in surface.sent] == ["opened", "error"]


async def test_updates_that_cannot_be_sent_end_the_session() -> None:
    conversation = Conversation()
    conversation.subscription.push(cast("Any", "no update"))
    surface = Surface()
    try:
        await surface.be_served(conversation)
    except AttributeError:
        assert conversation.is_closed
    else:
        raise AssertionError("It was served on.")


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
