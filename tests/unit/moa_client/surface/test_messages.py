"""What a surface may ask of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import Committed, LinkState, Permission, Provenance, Rewound, Titled
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.host.surface_session import Watch, serve_surface
from moa_client.surface.conversation import MOST_UNREAD, Subscription
from moa_client.surface.messages import ConversationFacts, fields_of, options_of, update_of
from moa_client.tools.tool import AnsweredCall
from moa_shared.errors import CATALOGUE, ConfigError, InternalError, OverloadedError, error_from_code
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import TokenChances, WantedChances

from tests.support.messages import raises
from tests.support.tool_calls import NOW, WEATHER, call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chances": 3}, "The option chances cannot be 3"),
        ({"chances": {"likeliest": 21}}, "21 likeliest tokens were asked for, expected 0 to 20"),
        ({"chances": {"processed": 1}}, "expected likeliest"),
        ({"chances": {"top": 1}}, "expected likeliest"),
        ({"seed": 1.5}, "The option seed cannot be 1.5"),
        ({"top_k": True}, "The option top_k cannot be True"),
        ({"reasoning_effort": "most"}, "The option reasoning_effort cannot be 'most'"),
        ({"tools": []}, "There is no option 'tools'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(options)
    given = {"temperature": 1, "seed": None, "chances": {"likeliest": 3, "processed": True}}
    assert options_of(given) == AnswerOptions(temperature=1, chances=WantedChances(3, processed=True))


COUNT, TEXT = st.integers(0, 2**40), st.text(max_size=8)
DECIMALS = st.floats(-100, 1e6).map(lambda number: round(number, 4))  # as many as are sent
LIKELIEST = st.dictionaries(COUNT, DECIMALS, max_size=3)
TOLD = st.builds(lambda chosen, each: TokenChances(chosen, tuple(each), tuple(each.values())), DECIMALS, LIKELIEST)
LETTERS = st.sampled_from(["", *(each.letter for each in Provenance)])
RUNS = st.tuples(COUNT, LETTERS) | st.tuples(COUNT, LETTERS, DECIMALS)
RESULTS = (AnsweredCall(call("now"), "12:00", is_error=True),)
OPTIONS = (
    AnswerOptions(tools=(WEATHER, NOW), results=RESULTS),
    AnswerOptions(temperature=0.5, stop=("a",), logit_bias=((3, -1.0),), chances=WantedChances(3, processed=True)),
)
OF_TYPE: dict[str, st.SearchStrategy[Any]] = {  # as their classes write them
    "int": COUNT,
    "str": TEXT,
    "bool": st.booleans(),
    "float": DECIMALS,
    "float | None": st.none() | DECIMALS,
    "tuple[int, ...]": st.lists(COUNT, max_size=5).map(tuple),
    "tuple[float, ...]": st.lists(DECIMALS, max_size=5).map(tuple),
    "tuple[TokenChances, ...]": st.lists(TOLD, max_size=4).map(tuple),
    "tuple[TextRun, ...]": st.lists(RUNS, max_size=3).map(tuple),
    "tuple[Provenance, ...]": st.just(()),  # for the history alone
    "Finish": st.sampled_from(Finish),
    "LinkState": st.sampled_from(LinkState),
    "AnswerOutcome": st.sampled_from(events.AnswerOutcome),
    "Permission": st.sampled_from(Permission),
    "AnswerOptions": st.sampled_from(OPTIONS),
    "MoaError": st.builds(error_from_code, st.sampled_from(sorted(CATALOGUE)), TEXT, TEXT),
    "Literal['address', 'drafter', 'model']": st.sampled_from(("drafter", "model")),
}


def made(kind: type, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any object of a class of messages."""
    return st.builds(kind, **{each.name: OF_TYPE[str(each.type)] for each in fields(kind)} | fixed)


@st.composite
def updates(draw: st.DrawFn) -> Update:
    kind = draw(st.sampled_from(get_args(events.SurfaceEvent)))
    event = draw(made(kind, standalone=st.just("deep")) if kind is events.DrafterChanged else made(kind))
    figures = None
    if isinstance(event, events.Ended):
        figures = draw(made(Figures, stale=st.just(0), finish=st.just(event.finish)))
    return Update(event, draw(st.integers(0, 9)), draw(st.none() | made(LinkStatus)), figures)


NO_ERROR = InternalError("none")


def compared(update: Update) -> tuple[Update, object]:
    """An update and its error, which two processes cannot share, apart."""
    event: events.SurfaceEvent = update.event
    if not isinstance(event, events.Failed | events.NotKept | events.Refused):
        return update, None
    error = event.error
    return replace(update, event=replace(event, error=NO_ERROR)), (type(error), error.message, error.hint)


@given(updates())
def test_an_update_comes_back_as_it_was(update: Update) -> None:
    fields = fields_of(update)
    assert compared(update_of(fields)) == compared(update)
    assert compared(update_of(json.loads(json.dumps(fields)))) == compared(update)


@given(updates())
def test_what_is_no_update_of_a_known_kind_is_not_read_as_another(update: Update) -> None:
    fields = fields_of(update)
    with pytest.raises((KeyError, ValueError, TypeError)):
        update_of({**fields, "event": "unknown"})
    for name in fields:
        try:
            read = update_of({key: value for key, value in fields.items() if key != name})
        except (KeyError, ValueError, TypeError):
            continue
        assert type(read.event) is type(update.event)


class Conversation:
    """One whose wishes fail by a defect."""

    facts = ConversationFacts("id", "", "tiny", "host:1", online=True)
    status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0, server="host:1")

    def __init__(self, *open_events: object) -> None:
        self.engine = self.publisher = self.task = self.calls = self
        self.answers = (AnswerText("why?", 1, committed="ab", runs=((2, "C"),)),)
        self.subscriptions: list[Subscription] = []
        self.open_events = open_events

    def stop(self) -> None:
        raise ZeroDivisionError

    def set_title(self, title: str) -> None:
        self.subscriptions[0].push_update(Update(Titled(title)))

    def permit(self, call: str, permission: Permission) -> None:
        self.set_title(f"{call} {permission.value}")


class Surface:
    """What it asks, and what it was sent."""

    def __init__(self, *asked: Mapping[str, Any]) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.has_left = asyncio.Event()
        self._asked = asked

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        for each in ({"do": "open"}, *self._asked):
            yield dict(each)
        await self.has_left.wait()

    async def send(self, fields: Mapping[str, Any]) -> None:
        self.sent.append(fields)
        if fields["event"] == "titled":
            self.has_left.set()

    async def be_served(self, conversation: Conversation) -> None:
        async def open_it(identifier: str | None, system: str | None, single: bool) -> Watch:
            return Watch(cast("Any", conversation))

        async with asyncio.timeout(20):
            await serve_surface(self.messages(), self.send, open_it)
        assert not conversation.subscriptions


async def test_what_cannot_be_followed_is_told_and_the_next_message_followed() -> None:
    bad = {"do": "permit", "call": "call_1", "permission": "yes"}
    surface = Surface({"do": "stop"}, bad, {**bad, "call": None}, {**bad, "permission": "always"})
    await surface.be_served(Conversation())
    _, defect, *refused, titled = surface.sent
    assert defect == snapshot(
        {
            "event": "error",
            "code": "internal",
            "message": "What was asked for has failed (ZeroDivisionError).",
            "hint": "This is a defect of moa: please report it with the log.",
        }
    )
    words = snapshot("`permit` needs the text `call`, and as `permission` one of once, always and denied.")
    assert [each["message"] for each in refused] == [words, words]
    assert titled["title"] == "call_1 always"


async def test_who_wrote_a_text_is_told() -> None:
    surface, run = Surface({"do": "title", "title": "t"}), (1, "S", 0.7788)
    await surface.be_served(Conversation(Committed((1,), 0, "c", runs=(run,))))
    opened, committed = surface.sent[:2]
    assert (opened["answers"][0]["runs"], committed["runs"]) == (((2, "C"),), ((1, "S", 0.7788),))


@pytest.mark.parametrize("open_events", [("no event",), [Titled("t")] * (MOST_UNREAD + 1)], ids=["defect", "lag"])
async def test_a_surface_that_can_be_told_no_more_learns_that_and_is_left(open_events: Sequence[object]) -> None:
    surface = Surface()
    await surface.be_served(Conversation(*open_events))
    assert [surface.sent[0]["event"], surface.sent[-1]["event"]] == ["opened", "error"]


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


async def test_updates_are_read_in_order_and_a_reader_that_lags_too_far_is_cut_off_for_good() -> None:
    subscription = Subscription(most_unread=5)
    for update in numbered(5):
        subscription.push_update(update)
    assert await read(subscription, 2) == numbered(2)
    subscription.push_update(*numbered(1, 5))
    assert await read(subscription, 4) == numbered(4, 2)
    for update in numbered(6):
        subscription.push_update(update)
    for _ in range(2):
        with raises(OverloadedError, snapshot("More than 5 events were not read. Open the conversation again.")):
            await read(subscription, 6)
        subscription.push_update(*numbered(1))
