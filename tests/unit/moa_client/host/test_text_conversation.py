"""A conversation in text, over an engine that does what a test says; and those of which one cannot be continued."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Asked,
    Committed,
    Continued,
    Corrected,
    Earlier,
    Ended,
    Event,
    Failed,
    NotKept,
    Provisional,
    Refused,
    Rewound,
    Settled,
    SurfaceEvent,
    Titled,
)
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import ConversationOrigin
from moa_client.history.store import HistoryStore
from moa_client.host.library import Library
from moa_client.host.surface_session import Watch
from moa_client.host.text_conversation import TextConversation
from moa_client.settings import ClientSettings
from moa_client.surface.messages import ConversationFacts
from moa_shared import errors
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import CHAT_DEFAULTS

from tests.support.answer_events import PlainTokenizer, letters
from tests.support.messages import says
from tests.unit.moa_client.host.scripted_engine import ScriptedEngine

OPTIONS = AnswerOptions(max_tokens=8, seed=3)
DECIDED = OPTIONS.decided(CHAT_DEFAULTS)
FACTS = ConversationFacts("id", "", "", "", online=False)
STOP = Ended(Finish.STOP)
ALONE = (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True))
CORRECTED = (Earlier(Committed((1,), 1)), Earlier(Corrected(1)), Earlier(Committed((3,))))
SETTLED = Settled((1, 3), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS, 2, 1)


class Talk:
    """A conversation over an engine that does what a test says, as one surface has it open."""

    def __init__(self, engine: ScriptedEngine, system: str | None = None, **arguments: Any) -> None:
        self.engine = engine
        self.conversation = TextConversation(cast("Any", engine), FACTS, system, **arguments)
        self.task, self.calls = self.conversation.task, self.conversation.calls
        self.watch = Watch(self.conversation)
        self.updates: list[Update] = []

    async def until(self, kind: type[SurfaceEvent], times: int = 1) -> Update:
        async with aclosing(cast("Any", self.watch.updates())) as updates:
            async for update in updates:
                self.updates.append(update)
                times -= isinstance(update.event, kind)
                if not times:
                    return cast("Update", update)
        raise AssertionError("The conversation was closed.")

    async def event(self, kind: type[SurfaceEvent]) -> Any:
        return (await self.until(kind)).event

    @property
    def events(self) -> list[tuple[int, SurfaceEvent]]:
        return [(update.answer, update.event) for update in self.updates]

    @property
    def answers(self) -> Sequence[AnswerText]:
        return self.conversation.publisher.answers

    @property
    def texts(self) -> list[str]:
        return [answer.committed + answer.provisional for answer in self.answers]

    async def answer(self, question: str, *events: Event) -> Update:
        self.task.ask(question, OPTIONS)
        await self.until(Asked)
        self.engine.tell(*(events or (Committed((0,)), STOP)))
        return await self.until(Ended)


@asynccontextmanager
async def talking(**arguments: Any) -> AsyncIterator[Talk]:
    talk = Talk(ScriptedEngine(), **arguments)
    try:
        yield talk
    finally:
        await talk.conversation.close()


CUT = (Committed((0, 1)), Ended(Finish.MAX_TOKENS))


async def test_an_answer_that_a_limit_or_the_user_has_ended_goes_on() -> None:
    journal, longer = Journal(), replace(DECIDED, max_tokens=10)
    async with talking(journal=journal) as talk:
        await talk.answer("one", *CUT)
        talk.task.continue_answer(8)
        await talk.until(Continued)
        talk.engine.tell(Committed((2,)), Ended(Finish.CANCELLED))
        await talk.until(Ended)
        assert talk.events[-3:-1] == [(1, Continued(longer)), (1, Committed((2,), text="c"))]
        assert (talk.texts, talk.engine.turns) == (["abc"], ["[user]one", ""])
        assert (talk.engine.settings[1], talk.answers[0].options) == (longer.settings(), longer)
        assert journal.notes[-3:] == [("Continued", 1, "", ""), ("Committed", 1, "c", ""), ("Ended", 1, "", "")]
        while talk.task.is_answering:  # noqa: ASYNC110 (its end is no update)
            await asyncio.sleep(0)
        talk.task.continue_answer(0)  # as the context allows
        talk.task.stop()  # before anything new has come
        await talk.until(Ended)
        await talk.answer("two")
        assert talk.texts == ["abc", "a"]


class Reasoner(PlainTokenizer):
    chat_template = "<think>"
    special_tokens = ()


async def test_another_model_reads_what_was_said_without_reasoning_and_nobody_decides_what_was_open() -> None:
    other = ScriptedEngine()
    async with talking() as talk:
        target, other.device.target.files.target_id = talk.engine.device.target, "large"
        target.tokenizer = Reasoner()
        target.decode = lambda tokens: "".join(("<think>", "Hm.", "</think>", "Yes", " and")[token] for token in tokens)
        talk.conversation.menu = lambda conversation, _: conversation.move(cast("Any", other))
        await talk.answer("one", Committed((0, 1, 2, 3)), Provisional((4,)), Ended(Finish.MAX_TOKENS, provisional=True))
        talk.conversation.choose_model("large")
        assert str((await talk.event(Refused)).error) == snapshot("large answers from now on.")
        talk.engine = other
        await talk.answer("two")
        assert other.turns == ["[user]one[assistant]Yes[user]two"]
        talk.task.continue_answer(0)
        await talk.event(Failed)
        assert [each.options.model for each in talk.answers] == ["tiny", ""]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((), snapshot("There is no answer to continue. Ask something first.")),
        ((Committed((0,)), STOP), snapshot("The answer has come to its end. Ask the next question.")),
        ((Committed((0,)), Ended(Finish.CONTEXT)), snapshot("The context is full. Begin a new conversation.")),
        (ALONE, snapshot("The server has not checked the answer yet. Continue it when it has.")),
    ],
)
async def test_an_answer_that_has_nothing_to_go_on_with_stays_as_it_is(events: tuple[Event, ...], words: str) -> None:
    async with talking() as talk:
        if events:
            await talk.answer("one", *events)
        before = talk.texts
        talk.task.continue_answer(8)
        failed = await talk.event(Failed)
        assert str(failed.error) == words
        assert (failed.taken_back, talk.texts, talk.task.is_answering) == (True, before, False)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_question_that_nobody_wants_before_it_began_is_not_asked(at_once: bool) -> None:
    async with talking() as talk:
        talk.task.ask("one", OPTIONS)
        talk.task.stop(at_once=at_once)
        await talk.until(Rewound)
        assert talk.events == [(1, Asked("one", DECIDED)), (1, Ended(Finish.CANCELLED)), (0, Rewound(0))]
        await talk.answer("two")
        assert (talk.engine.turns, talk.texts) == (["[user]two"], ["a"])


class Panic(BaseException):
    """As a package in Rust raises it."""


def decode(tokens: Sequence[int]) -> str:
    if 25 in tokens:
        raise Panic
    return letters(tokens)


@pytest.mark.parametrize(
    "happenings",
    [(Panic(),), (Committed((0,)), Panic()), (Committed((0,)), Committed((25,)))],
    ids=["before anything came", "in the middle", "while its text is decoded"],
)
async def test_whatever_was_raised_the_answer_ends_in_an_event_and_the_next_one_begins(
    happenings: tuple[Event | BaseException, ...],
) -> None:
    async with talking() as talk:
        talk.engine.device.target.decode = decode
        talk.task.ask("one", OPTIONS)
        await talk.until(Asked)
        talk.engine.tell(*happenings)
        failed = await talk.until(Failed)
        assert (failed.answer, cast("Failed", failed.event).taken_back) == (1, len(happenings) == 1)
        assert not talk.task.is_answering
        talk.engine.tell(Panic())  # between two
        assert (await talk.until(Failed)).answer == 0
        await talk.answer("two")


async def test_an_answer_is_again_what_this_device_had_written_where_the_reader_wants_that() -> None:
    async with talking() as talk:
        with says(errors.ConflictError, "The server has replaced no text of this device in the newest answer."):
            talk.task.keep()
        await talk.answer("one", Committed((0,)), STOP)
        talk.updates.clear()
        talk.engine.answers.withdrawn = Mock(turns=1)
        talk.task.keep()
        await talk.until(Ended)
        assert talk.engine.done[-1] == "keep [user]one"
        assert talk.events == [
            (0, Rewound(0)),
            (1, Asked("one", DECIDED)),
            (1, Committed((1, 2, 3), text="bcd")),
            (1, Ended(Finish.CANCELLED)),
        ]
        assert talk.texts == ["bcd"]


async def test_another_answer_in_the_place_of_one_keeps_what_was_shown_of_that() -> None:
    journal = Journal()
    async with talking(journal=journal) as talk:
        await talk.answer("one")
        await talk.answer("two")
        talk.task.ask("other", OPTIONS, 1)
        assert (await talk.until(Asked)).answer == 1
        talk.engine.tell(Committed((1,)), STOP)
        await talk.until(Ended)
        [text] = talk.answers
        assert (text.question, text.committed, text.versions) == ("other", "b", (("one", "a"),))
        assert talk.engine.done == ["rewind 0"]
        talk.task.ask("more", OPTIONS, 7)  # there is none of that number
        assert (await talk.until(Asked)).answer == 2
    asked = [note[1:3] for note in journal.notes if note[0] == "Asked"]
    assert asked == [(1, "one"), (2, "two"), (1, "other"), (2, "more")]


class Journal:
    """Notes all that it is to keep, until the disk is full."""

    def __init__(self, room: int = 100) -> None:
        self.notes: list[tuple[object, ...]] = []
        self._room = room

    def on_update(self, update: Update, text: AnswerText | None, figures: object = None) -> None:
        event = update.event
        if len(self.notes) == self._room:
            raise errors.DiskFullError("The disk is full.")
        if isinstance(event, Titled | Rewound):
            self.notes.append((type(event).__name__, *dataclasses.astuple(event)))
        elif text is not None:
            added = event.question if isinstance(event, Asked) else getattr(event, "text", "")
            self.notes.append((type(event).__name__, text.number, added, text.provisional))


async def test_what_happens_is_kept_in_order() -> None:
    journal = Journal()
    async with talking(journal=journal) as talk:
        talk.conversation.set_title("t")
        await talk.answer("one", *ALONE)
        talk.engine.tell(*CORRECTED, SETTLED)
        await talk.until(Settled)
        for events in ((errors.UnavailableError("Gone."),), (Committed((0,)), errors.UnavailableError("Gone."))):
            talk.task.ask("two", OPTIONS)
            await talk.until(Asked)
            talk.engine.tell(*events)
            await talk.until(Failed)
        talk.task.rewind(1)
        await talk.until(Rewound)
    assert journal.notes == [
        ("Titled", "t"),
        ("Asked", 1, "one", ""),
        ("Committed", 1, "a", ""),
        ("Provisional", 1, "", "bc"),
        ("Ended", 1, "", "bc"),
        ("Committed", 1, "b", "c"),
        ("Corrected", 1, "", ""),
        ("Committed", 1, "d", ""),
        ("Settled", 1, "", ""),
        ("Asked", 2, "two", ""),
        ("Failed", 2, "", ""),
        ("Asked", 2, "two", ""),
        ("Committed", 2, "a", ""),
        ("Failed", 2, "", ""),
        ("Rewound", 1),
    ]


async def test_that_nothing_more_is_kept_is_said_once_and_the_answer_continues() -> None:
    journal = Journal(room=2)
    async with talking(journal=journal) as talk:
        await talk.answer("one", Committed((0,)), Committed((1,)), STOP)
        await talk.answer("two")
        [told] = [update for update in talk.updates if isinstance(update.event, NotKept)]
        assert (told.answer, talk.texts) == (0, ["ab", "a"])
        assert len(journal.notes) == 2


class Conversation:
    engine, task = SimpleNamespace(unsettled=1), SimpleNamespace(is_answering=False)

    def __init__(self) -> None:
        self.publisher = SimpleNamespace(answers=[], subscriptions=[])

    def resume(self, stored: Any) -> None:
        if stored.title == "bad":
            raise ZeroDivisionError
        self.publisher.answers = [1]


def kept(folder: Path, **targets: bytes) -> HistoryStore:
    """A history with conversations in which a server has something to decide, by their titles; with which model."""
    store = HistoryStore(folder)
    for title, target in targets.items():
        name = store.create(ConversationOrigin("m", target, b"k"), title)
        store.end_answer(store.begin_answer(name, "Why?", AnswerOptions()), "max_tokens", verified=False)
    return store


def titles(store: HistoryStore, library: Library) -> list[str]:
    return [store.load(name).title for name in library.open_conversations]


IDENTITY = SimpleNamespace(target_fingerprint=b"t", tokenizer_hash=b"k")


class Host:
    device = SimpleNamespace(
        identity=IDENTITY,
        companion=SimpleNamespace(fingerprint=b"small".hex()),
        target=SimpleNamespace(files=SimpleNamespace(target_id="large"), level="", identity=IDENTITY),
    )
    link = SimpleNamespace(shown=SimpleNamespace(address="host:1"))
    settings = ClientSettings()

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []

    def converse(self, **_: Any) -> Conversation:
        self.conversations.append(Conversation())
        return self.conversations[-1]

    async def leave(self, conversation: Conversation) -> None:
        self.conversations.remove(conversation)


async def test_each_conversation_is_continued_with_its_model_and_one_that_cannot_be_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the companion has begun is with the target from here on."""
    host, store, released = Host(), kept(tmp_path, bad=b"t", good=b"small", strange=b"other"), set[str]()
    names = {each.title: each.identifier for each in store.list()}
    library = Library(cast("Any", host), store)
    monkeypatch.setattr(store, "release", released.add)
    await library.reopen_unverified()
    assert titles(store, library) == ["good"]
    assert f"{names['bad']} is left as it is" in caplog.text
    targets = {each.title: store.load(each.identifier).origin.target for each in store.list()}
    assert targets == {"bad": b"t", "good": b"t", "strange": b"other"}
    await library.close()
    assert (host.conversations, released) == ([], {names["bad"], names["good"]})
