"""A session's stream, its account, who drafts for it, and what the log says that it has used."""

from typing import Any, cast
from unittest.mock import create_autospec

from moa_server.access.limits import Caller, TokenMeter
from moa_server.engine.live_session import Account, Attachment, Listener, LiveSession, Usage
from moa_server.engine.server_drafts import SessionDrafting
from moa_server.engine.stepper import MemorySource
from moa_server.session.memory_feed import KeptPlane
from moa_server.session.session import Session, SessionLimits
from moa_shared.errors import RateLimitError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ask, Plane


def stream() -> Attachment:
    return Attachment(create_autospec(Listener, instance=True))


def session() -> LiveSession:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    return LiveSession(b"", session, cast(Any, None))


def test_a_detached_session_has_a_caller_and_no_stream() -> None:
    live = session()
    live.attach(Caller("a"), stream())
    live.detach()
    assert (live.caller.owner, live.stream.listener, live.stream.feed) == ("a", None, None)
    assert not live.closed


def test_a_session_is_idle_without_an_answer_for_a_client_and_without_a_forward() -> None:
    live = session()
    live.attach(Caller("a"), stream())
    assert live.is_idle
    live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1], AnswerSettings(), 0))
    assert not live.is_idle
    live.detach()
    assert live.is_idle  # it runs ahead, and may be stopped for others
    live.turn.stepping = True
    assert not live.is_idle
    live.turn.stepping = False
    live.turn.steps += 1
    assert live.is_idle


def test_an_answer_pays_for_what_was_computed_and_pauses_when_its_limit_is_used_up() -> None:
    meter = create_autospec(TokenMeter, instance=True)
    meter.refusal.return_value = RateLimitError("too many")
    account = Account()
    account.let_in(meter)
    meter.begin.assert_called_once_with()
    assert account.pay(5, 0, answering=True) is None  # a part of a prompt is read to its end
    assert account.pay(0, 1, answering=True) is meter.refusal.return_value
    assert [call.args for call in meter.read.call_args_list] == [(5,), (0,)]
    assert [call.args for call in meter.write.call_args_list] == [(0,), (1,)]


def test_an_answer_that_has_ended_gives_back_what_it_did_not_use() -> None:
    meter = create_autospec(TokenMeter, instance=True)
    account = Account()
    account.let_in(meter)
    assert account.pay(0, 3, answering=False) is None
    meter.end.assert_called_once_with()


def test_a_new_meter_ends_the_one_before_it() -> None:
    first, second = (create_autospec(TokenMeter, instance=True) for _ in range(2))
    account = Account()
    account.let_in(first)
    account.let_in(second)
    first.end.assert_called_once_with()
    assert account.meter is second


WIDTHS: dict[KeptPlane, int] = {Plane.MEMORY: 4}


def source() -> MemorySource:
    return MemorySource(lambda rows: rows, 4, 1)


def text_session(*tokens: int) -> Session:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_open(tokens)
    return session


def test_planes_are_added_to_those_of_the_same_source() -> None:
    drafting, first, second = SessionDrafting(), source(), source()
    assert drafting.keep(first, WIDTHS) == [Plane.MEMORY]
    assert drafting.keep(first, {**WIDTHS, Plane.REUSED_STATE: 8}) == [Plane.REUSED_STATE]
    assert drafting.keep(first, WIDTHS) == []
    assert drafting.widths == {Plane.MEMORY: 4, Plane.REUSED_STATE: 8}
    assert drafting.keep(second, WIDTHS) == [Plane.MEMORY]
    assert drafting.widths == WIDTHS


def test_it_is_told_another_text_from_the_start() -> None:
    drafting = SessionDrafting()
    drafting.tell(text_session(1, 2, 3))
    assert drafting.tell(text_session(1, 9, 3, 4)) == 0
    assert drafting.tell(text_session(1)) == 0
    drafting.forget()
    assert drafting.tell(text_session(1)) == 0


CALLER = Caller("key 0", "ipv4:10.0.0.1:5", "laptop", is_proven=True)


def test_each_token_is_counted_once() -> None:
    usage = Usage(began=100.0)
    usage.on_ask(1, 10)
    usage.on_written(4, Finish.UNFINISHED)
    usage.on_written(1, Finish.MAX_TOKENS)
    usage.on_ask(2, 10 + 5 + 7)  # the next question, behind the answer
    assert usage.facts(CALLER, 103.0) == {
        "key": "laptop",
        "peer": "ipv4:10.0.0.1:5",
        "questions": 2,
        "tokens_in": 17,
        "tokens_out": 5,
        "finish": "unfinished",
        "seconds": 3.0,
    }


def test_a_conversation_that_was_cut_back_counts_what_is_sent_again() -> None:
    usage = Usage(began=0.0)
    usage.on_ask(1, 10)
    usage.on_written(5, Finish.END_OF_TEXT)
    usage.on_ask(2, 12)  # three tokens of the answer were thrown away, and none is new
    usage.on_ask(3, 20)
    assert (usage.tokens_in, usage.tokens_out) == (18, 5)
