"""The engine's loop with a connection that does what the test says: what it handles, shows and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import Ended, Event, LinkState
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DrafterFailed
from moa_client.engine import session_exchange
from moa_client.engine.engine import ClientEngine
from moa_client.engine.inbox import Inbox
from moa_client.engine.session_exchange import SessionExchange
from moa_client.link.availability import NOTHING, Availability, Reaction
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet
from moa_client.link.outages import LinkLosses
from moa_client.link.stream import StreamTraffic
from moa_shared.errors import (
    ConfigError,
    InternalError,
    MoaError,
    ProtocolError,
)
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling, choice_of

from tests.support.answer_events import plainly_committed

PROMPT = [1, 2, 3]
SETTINGS = AnswerSettings(max_tokens=20)


VOCAB = 50
IDENTITY = pb.Identity(target_id="toy", target_fingerprint=b"t", tokenizer_hash=b"k")
LINK = cast(Fleet, SimpleNamespace(silence_seconds=60.0, losses=LinkLosses()))


class FakeDialer:
    """Knows one server."""

    address = "host:1"
    label = "host"
    has_other = False

    def chooses_again(self) -> bool:
        return False

    def look_around(self) -> None:
        pass

    def seek_form(self, *, is_needed: bool) -> bool:
        return False

    def on_stalled(self) -> None:
        pass


class FakeConnection:
    """State: whether a stream is open, what was sent on all of them, and what was done with them."""

    def __init__(
        self,
        link: Fleet,
        make_open: Callable[[str], pb.Open],
        post: Callable[[FrameReceived | StreamOpened | StreamLost], None],
        text: PrefixHashes,
    ) -> None:
        self.dialer = FakeDialer()
        self.traffic = StreamTraffic()
        self.is_up = False
        self.is_trying = False
        self.stream_number = 0
        self.rtt_ms = 0.0
        self.opens: list[pb.Open] = []
        self.sent: list[pb.ClientFrame] = []
        self.done: list[str] = []
        self._make_open = make_open
        self._post = post

    # ------------------------------------------------------------ for the engine

    def start(self) -> None:
        self.is_trying = not self.is_up
        self.done.append("start")

    def send(self, frame: pb.ClientFrame) -> None:
        if self.is_up:
            self.sent.append(frame)

    def accept(self, happened: FrameReceived | StreamOpened | StreamLost) -> bool:
        return happened.stream == self.stream_number

    async def drop(self) -> None:
        self._leave("drop")

    async def lose(self) -> None:
        self._leave("lose")

    async def leave(self) -> None:
        self._leave("leave")

    def _leave(self, how: str) -> None:
        self.is_up = self.is_trying = False
        self.stream_number += 1
        self.done.append(how)

    # ------------------------------------------------------------ for a test

    def open(self, *, address: str = "host:1", label: str = "host", **opened: Any) -> None:
        """A server opens the stream."""
        self.opens.append(self._make_open(address))
        self.stream_number += 1
        self.is_up, self.is_trying = True, False
        self._post(StreamOpened(self.stream_number, pb.Opened(**opened), 10.0, address, label))

    def receive(self, **frame: Any) -> None:
        """A frame comes."""
        self._post(FrameReceived(self.stream_number, pb.ServerFrame(**frame)))

    def verdict(self, ask: int, base: int, tokens: Sequence[int], **fields: Any) -> None:
        """A verdict comes."""
        self.receive(verdict=pb.Verdict(ask=ask, base=base, tokens=tokens, **fields))

    def end(self, error: MoaError | None = None, *, retrying: bool = False, **fields: Any) -> None:
        """The stream ends."""
        self.is_up, self.is_trying = False, retrying
        error = error or UnavailableError("The server has closed the connection.")
        self._post(StreamLost(self.stream_number, error, retrying, broke=False, **fields))


def use_fake_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are made in this test have a `FakeConnection`."""
    monkeypatch.setattr(session_exchange, "ServerConnection", FakeConnection)


def bare_device() -> Device:
    """A device without a drafter."""
    tokenizer = SimpleNamespace(shown=str)
    return Device(cast(Any, None), cast(Any, tokenizer), IDENTITY, Drafting(), frozenset({VOCAB - 1}), 1000)


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

    def open(self) -> None:
        self.connection.open()
        self.handle()

    def decide(self, *tokens: int, finish: pb.Finish = pb.FINISH_UNSPECIFIED) -> None:
        """The server commits tokens."""
        base = len(self.answers.conversation.tokens)
        self.connection.verdict(self.answers.conversation.ask_id, base, tokens, finish=finish)
        self.handle()

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


@pytest.mark.parametrize("is_rewound", [True, False])
def test_frames_of_a_conversation_that_was_rewound_or_wants_no_server_are_ignored(
    session: Session, is_rewound: bool
) -> None:
    session.open()
    session.ask()
    if is_rewound:
        session.exchange.is_outdated = True
    else:
        session.availability.go_offline()
    session.decide(4)
    assert session.events() == []


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
