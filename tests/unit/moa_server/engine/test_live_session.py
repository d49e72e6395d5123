"""A session's stream, its account, who drafts for it, and what the log says that it has used."""

from typing import Any, cast
from unittest.mock import create_autospec

import structlog
from moa_server.access.limits import Caller, TokenMeter
from moa_server.engine.live_session import Account, Attachment, Listener, LiveSession, Observer
from moa_server.session.session import Session, SessionLimits
from moa_shared.errors import RateLimitError
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish


def test_a_session_is_idle_without_an_answer_for_a_client_and_without_a_forward() -> None:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    live = LiveSession(b"", session, cast(Any, None))
    live.attach(Caller("a"), Attachment(create_autospec(Listener, instance=True)))
    assert live.is_idle
    live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1], AnswerSettings(), 0))
    assert not live.is_idle
    live.detach()
    assert (live.caller.owner, live.stream.listener, live.closed) == ("a", None, False)
    assert live.is_idle  # it runs ahead, and may be stopped for others
    live.turn.stepping = True
    assert not live.is_idle


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


def test_an_answer_that_has_ended_or_another_meter_gives_back_what_was_not_used() -> None:
    first, second = (create_autospec(TokenMeter, instance=True) for _ in range(2))
    account = Account()
    account.let_in(first)
    account.let_in(second)
    first.end.assert_called_once_with()
    assert account.pay(0, 3, answering=False) is None
    second.end.assert_called_once_with()


def test_each_token_is_counted_once() -> None:
    account = Account(began=100.0)
    account.on_ask(1, 10)
    account.on_written(4, 0, 0, Finish.UNFINISHED)
    account.on_written(1, 0, 0, Finish.MAX_TOKENS)
    account.on_ask(2, 10 + 5 + 7)  # the next question, behind the answer
    account.on_ask(3, 15)  # seven tokens were thrown away, and none is new
    account.on_ask(4, 20)
    assert account.facts(Caller("key 0", "ipv4:10.0.0.1:5", "laptop", is_proven=True), 103.0) == {
        "key": "laptop",
        "peer": "ipv4:10.0.0.1:5",
        "questions": 4,
        "tokens_in": 22,
        "tokens_out": 5,
        "finish": "unfinished",
        "seconds": 3.0,
    }


def test_an_observer_s_defect_costs_no_answer_and_is_logged_once() -> None:
    class Defective(Observer):
        def on_forward(self, *_: object) -> None:
            raise ZeroDivisionError

        def on_call(self, method: str) -> None:
            raise ZeroDivisionError

    defective = Defective()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            defective.on_forward()
            defective.on_call("Embed")
    assert [each["seen"] for each in logs] == ["on_forward", "on_call"]
