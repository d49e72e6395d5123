"""The engine's loop with a connection that does what the test says: what it handles, shows and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import Ended, Event, LinkChanged, LinkState, ServerChanged
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DrafterFailed
from moa_client.engine.engine import ClientEngine
from moa_client.engine.inbox import Inbox
from moa_client.engine.session_exchange import SessionExchange
from moa_client.link.availability import NOTHING, Availability, LinkCommand, Reaction
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_shared.errors import (
    ConfigError,
    InternalError,
    MismatchError,
    MoaError,
    ProtocolError,
    RateLimitError,
    UnavailableError,
)
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling, choice_of
from moa_shared.tree.draft_tree import DraftTree

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


async def until(is_so: Callable[[], bool]) -> None:
    """Lets the loop run until something is so."""
    for _ in range(100):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not become so")


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


async def test_a_refused_question_raises_and_is_taken_back(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    connection.end(MoaError("No."))
    with pytest.raises(MoaError, match=r"No\."):
        await asking
    assert engine.conversation.tokens == []


async def test_a_server_that_does_not_fit_is_asked_what_it_is(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    asked = asyncio.Event()

    async def describe() -> pb.DescribeResponse:
        asked.set()
        return pb.DescribeResponse(identity=bare_device().identity)

    connection.dialer.describe = describe  # type: ignore[attr-defined]
    asking = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)
    connection.end(MismatchError("drafter", "one", "another"))
    await asked.wait()
    await until(lambda: connection.done == ["start", "start"])  # it has the model: a stream is opened again
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_user_who_stops_gets_the_servers_last_word(engine: ClientEngine) -> None:
    connection = connection_of(engine)
    async with aclosing(engine.ask(PROMPT, SETTINGS)) as events:
        asking = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        connection.open()
        connection.verdict(1, 3, [4])
        await asking
        engine.stop()
        asking = asyncio.ensure_future(anext(events))
        stop = pb.ClientFrame(stop=pb.Stop(ask=1, base=1))
        await until(lambda: stop in connection.sent)
        connection.verdict(1, 4, [5], finish=pb.FINISH_CANCELLED)
        assert await asking == plainly_committed(5)
        assert await anext(events) == Ended(Finish.CANCELLED)


Result = TypeVar("Result")

GONE = UnavailableError("The server has closed the connection.")


def await_now(call: Coroutine[None, None, Result]) -> Result:
    """The result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return cast(Result, done.value)
    raise AssertionError("it waits")


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


def test_a_server_that_shuts_down_does_not_end_the_answer(session: Session) -> None:
    session.open()
    session.ask()
    session.decide(4, finish=pb.FINISH_DRAINING)
    assert session.events() == [plainly_committed(4)]


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


def test_a_session_is_resumed_by_a_token_that_only_its_server_sees(session: Session) -> None:
    session.open(resume_token=b"one")
    session.open(address="host:2", label="two", resume_token=b"two")
    assert session.events() == [ServerChanged("address", "two answers now instead of host.")]
    session.open()
    assert [opened.resume_token for opened in session.connection.opens] == [b"", b"", b"one"]


def test_what_remains_of_a_conversation_is_the_same_session(session: Session) -> None:
    session.open(resume_token=b"one")
    session.ask()
    session.exchange.is_outdated = True
    await_now(session.exchange.leave_outdated())
    assert session.connection.done == ["drop"]  # without goodbye
    session.open()
    assert session.connection.opens[-1].resume_token == b"one"


def test_a_server_that_wants_to_be_left_alone_is_waited_for(session: Session) -> None:
    session.open()
    session.ask()
    session.connection.end(RateLimitError("Slower."), retrying=True, wait_seconds=12.0)
    change = LinkChanged(LinkState.WAITING, "Slower.", 12.0)
    assert session.handle() == Reaction((LinkCommand.GO_STANDALONE,), (change,))


def test_a_stream_that_the_server_ended_for_idleness_is_opened_for_a_question(session: Session) -> None:
    session.open()
    session.connection.end(rests=True)
    assert session.handle() == NOTHING
    assert session.connection.done == []
    session.ask()
    session.connection.end(rests=True)
    assert session.handle() == NOTHING
    assert session.connection.done == ["start"]


# ---------------------------------------------------------------- the device


def test_another_device_is_used_once_it_is_time(session: Session) -> None:
    other, before = replace(bare_device(), step_ms=7.0), session.exchange.drafting
    before.standalone.asked_for = True
    session.exchange.next_device = other
    await_now(session.exchange.change_device())
    assert session.exchange.device is other
    assert session.exchange.next_device is None
    assert session.exchange.drafting is not before
    assert session.exchange.drafting.standalone.asked_for
    await_now(session.exchange.change_device())
    assert session.exchange.device is other
    assert session.connection.done == ["drop"]


def test_a_whole_draft_is_sent_to_a_server_that_answers(session: Session) -> None:
    session.open()
    session.ask()
    session.decide(4)
    session.exchange.on_completed(DraftCompleted(4, DraftTree.chain([5, 6])))
    assert list(session.connection.sent[-1].draft.tokens) == [5, 6]
    session.lose()
    session.open()
    session.availability.begin_lost()
    sent = len(session.connection.sent)
    session.exchange.on_completed(DraftCompleted(4, DraftTree.chain([5, 6])))
    assert len(session.connection.sent) == sent


def test_memory_that_cannot_be_read_is_the_servers_fault(session: Session) -> None:
    error = ProtocolError("rows", "nonsense")
    with pytest.raises(ProtocolError):
        session.exchange.on_drafter_failed(DrafterFailed(error))
    assert session.exchange.failure is None


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
