from __future__ import annotations

from typing import Any, cast
from unittest.mock import create_autospec

from moa_server.access.caller import Caller
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.session.session import Session, SessionLimits
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask


def stream() -> Attachment:
    return Attachment(create_autospec(Listener, instance=True))


def session() -> LiveSession:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    return LiveSession(b"", session, cast(Any, None))


def test_a_stream_that_is_replaced_learns_that() -> None:
    live, first, second = session(), stream(), stream()
    live.attach(Caller("a"), first)
    live.attach(Caller("b"), second)
    assert first.listener is not None
    first.listener.on_taken_over.assert_called_once_with()  # type: ignore[attr-defined]
    assert (live.caller.owner, live.stream) == ("b", second)


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
