"""The engine's loop with a connection that does what the test says: what it handles, shows and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import Ended, Event, LinkState
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DrafterFailed
from moa_client.engine.engine import ClientEngine
from moa_client.engine.inbox import Inbox
from moa_client.engine.session_exchange import SessionExchange
from moa_client.link.availability import NOTHING, Availability, Reaction
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_shared.errors import (
    ConfigError,
    InternalError,
    ProtocolError,
    UnavailableError,
)
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling, choice_of

from tests.support.answer_events import plainly_committed
from tests.support.fake_connection import LINK, VOCAB, FakeConnection, bare_device, use_fake_connections

PROMPT = [1, 2, 3]
SETTINGS = AnswerSettings(max_tokens=20)


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClientEngine]:
    use_fake_connections(monkeypatch)
    engine = ClientEngine(LINK, bare_device(), VOCAB, Codec.INT4)
    yield engine
    await engine.close()


def connection_of(engine: ClientEngine) -> FakeConnection:
    return cast(FakeConnection, engine.connection)


async def answer(engine: ClientEngine) -> list[Event]:
    return [event async for event in engine.ask(PROMPT, SETTINGS)]


async def test_a_question_is_answered(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    assert connection.done == ["start"]
    connection.open()
    assert connection.opens[0].ask.id == 1
    connection.verdict(1, 3, [4, 5])
    connection.verdict(1, 5, [6], finish=pb.FINISH_END_OF_TEXT)
    assert await asking == [plainly_committed(4, 5), plainly_committed(6), Ended(Finish.END_OF_TEXT)]
    assert engine.conversation.tokens == [*PROMPT, 4, 5, 6]
    assert engine.figures.verdicts == 2


async def test_a_server_that_violates_the_protocol_is_left(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    connection.open()
    connection.verdict(1, 9, [4])
    with pytest.raises(ProtocolError, match="a verdict from position 3 or before"):
        await asking
    assert engine.availability.state is LinkState.OFFLINE
    assert "drop" in connection.done
    assert engine.conversation.tokens == []  # a question without an answer is taken back


GONE = UnavailableError("The server has closed the connection.")


class Session:
    """An exchange, and its inbox handled at once."""

    def __init__(self) -> None:
        self.answers = AnswerQueue(Conversation(VOCAB), bare_device().end_rule)
        self.availability = Availability(60_000.0)
        self.inbox = Inbox()
        self.exchange = SessionExchange(
            LINK, self.answers, self.availability, bare_device(), DraftingSettings(), Codec.INT4, self.inbox
        )
        self.connection = cast(FakeConnection, self.exchange.connection)

    def ask(self) -> None:
        self.exchange.ask(self.answers.begin(lambda _: PROMPT, AnswerSettings(max_tokens=20)))

    def handle(self) -> Reaction:
        """Takes in what has come of streams; what to do after the last of it."""
        reaction = NOTHING
        while (item := self.inbox.take_now()) is not None:
            match item:
                case FrameReceived():
                    self.exchange.on_frame(item.frame)
                case StreamOpened():
                    self.exchange.on_opened(item)
                case StreamLost():
                    reaction = self.exchange.on_lost(item)
        return reaction

    def open(self, *, address: str = "host:1", label: str = "host", resume_token: bytes = b"") -> None:
        self.connection.open(address=address, label=label, resume_token=resume_token)
        self.handle()

    def decide(self, *tokens: int, finish: pb.Finish = pb.FINISH_UNSPECIFIED) -> None:
        """The server commits tokens."""
        base = len(self.answers.conversation.tokens)
        self.connection.verdict(self.answers.conversation.ask_id, base, tokens, finish=finish)
        self.handle()

    def lose(self) -> None:
        """The server is away."""
        self.connection.end(GONE, retrying=True)
        self.handle()

    @property
    def sent(self) -> list[str | None]:
        return [frame.WhichOneof("frame") for frame in self.connection.sent]

    def events(self) -> list[object]:
        events = list(self.answers.events)
        self.answers.events.clear()
        return list(events)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    use_fake_connections(monkeypatch)
    session = Session()
    yield session
    session.exchange.drafting.close()


# ---------------------------------------------------------------- questions


# ---------------------------------------------------------------- what the server decides


def test_frames_about_a_conversation_that_was_rewound_are_ignored(session: Session) -> None:
    session.open()
    session.ask()
    session.exchange.is_outdated = True
    session.decide(4)
    assert session.events() == []


def test_frames_are_ignored_once_the_user_wants_no_server(session: Session) -> None:
    session.open()
    session.ask()
    session.availability.go_offline()
    session.decide(4)
    assert session.events() == []


# ---------------------------------------------------------------- streams


# ---------------------------------------------------------------- the device


def test_a_drafter_that_fails_ends_the_answer(session: Session) -> None:
    error = InternalError("The drafter has failed.")
    session.exchange.on_drafter_failed(DrafterFailed(error))
    assert session.exchange.failure is error


@pytest.mark.parametrize("is_older", [False, True])
def test_a_server_that_would_ignore_the_form_of_an_answer_is_not_asked(session: Session, is_older: bool) -> None:
    settings = AnswerSettings(Sampling(constraint=choice_of(["yes", "no"])))
    ask = session.answers.begin(lambda _: PROMPT, settings)
    session.connection.start()
    if is_older:
        session.connection.open(label="home")
        with pytest.raises(ConfigError, match="home cannot hold answers to a form"):
            session.handle()
        return
    session.exchange.ask(ask)
    session.connection.open(limits=pb.Limits(constraints=True))
    assert session.handle() == NOTHING
