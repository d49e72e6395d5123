from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock, create_autospec

from moa_server.engine.inference_thread import SessionLosses, public_error
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.observer import Observer
from moa_shared.errors import InternalError, TokenRangeError


def test_a_session_is_lost_once_and_its_stream_learns_why() -> None:
    on_lost, observer = Mock(), create_autospec(Observer, instance=True)
    listener = create_autospec(Listener, instance=True)
    live = LiveSession(b"", cast(Any, None), cast(Any, None), stream=Attachment(listener))
    error = TokenRangeError("token 99")
    losses = SessionLosses(on_lost, observer)
    losses.lose(live, error)
    losses.lose(live, RuntimeError("again"))
    listener.on_failure.assert_called_once_with(error)
    on_lost.assert_called_once_with(live)
    observer.on_lost.assert_called_once_with()
    assert live.closed
    assert live.stream.listener is None


def test_details_of_a_defect_stay_in_the_log() -> None:
    error = public_error(RuntimeError("the password is 1234"))
    assert isinstance(error, InternalError)
    assert "1234" not in str(error)
