"""What is told of an answer when something fails at its end, or nothing is left of it."""

from __future__ import annotations

from typing import Any, cast

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.events import (
    Asked,
    Committed,
    Ended,
    Failed,
    SurfaceEvent,
)
from moa_client.host.publisher import Publisher
from moa_client.surface.open_conversation import Subscription
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_engine import ScriptedEngine

OPTIONS = AnswerOptions()
GONE = UnavailableError("Gone.")
STOPPED = Ended(Finish.CANCELLED)


class Heard:
    """A publisher without a journal, and what a surface hears of it."""

    def __init__(self) -> None:
        self.publisher = Publisher(cast("Any", ScriptedEngine()), None)
        self._subscription = Subscription()
        self.publisher.subscriptions.append(self._subscription)

    async def updates(self) -> list[tuple[int, SurfaceEvent]]:
        self._subscription.close()
        return [(update.answer, update.event) async for update in self._subscription.updates()]


async def test_what_fails_after_an_answer_has_ended_is_not_about_it() -> None:
    heard = Heard()
    answer = heard.publisher.begin("why?", OPTIONS)
    for event in (Committed((0,)), Ended(Finish.STOP)):
        heard.publisher.on_event(event, answer)
    heard.publisher.break_off(STOPPED, answer)
    heard.publisher.break_off(Failed(GONE, taken_back=True), answer)
    assert [text.committed for text in heard.publisher.answers] == ["a"]
    assert await heard.updates() == [
        (1, Asked("why?", OPTIONS)),
        (1, Committed((0,), text="a")),
        (1, Ended(Finish.STOP)),
        (0, Failed(GONE)),
    ]
