"""What a conversation sends on a stream and takes in from it, with a connection that does what the test says."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import TypeVar, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import LinkChanged, LinkState, ServerChanged
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DrafterFailed
from moa_client.engine.inbox import Inbox
from moa_client.engine.session_exchange import SessionExchange
from moa_client.link.availability import NOTHING, Availability, LinkCommand, Reaction
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_shared.errors import ConfigError, InternalError, ProtocolError, RateLimitError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling, choice_of
from moa_shared.tree.draft_tree import DraftTree

from tests.support.answer_events import plainly_committed
from tests.support.fake_connection import LINK, VOCAB, FakeConnection, bare_device, use_fake_connections

Result = TypeVar("Result")

PROMPT = [1, 2, 3]
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
