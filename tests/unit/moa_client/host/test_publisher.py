"""What is told of an answer when something fails at its end, or nothing is left of it."""

from __future__ import annotations

from typing import Any, cast

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.events import (
    AnswerOutcome,
    Asked,
    Committed,
    Earlier,
    Ended,
    Failed,
    Provisional,
    Refused,
    Rewound,
    Settled,
    SurfaceEvent,
)
from moa_client.host.publisher import Publisher
from moa_client.surface.open_conversation import Subscription
from moa_shared.errors import ContextLengthError, UnavailableError
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_engine import ScriptedEngine

OPTIONS = AnswerOptions()
GONE = UnavailableError("Gone.")
STOPPED = Ended(Finish.CANCELLED)
ALONE = (Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True))


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


async def test_a_question_that_fails_before_its_answer_is_no_part_of_the_conversation() -> None:
    heard = Heard()
    heard.publisher.break_off(Failed(GONE, taken_back=True), heard.publisher.begin("why?", OPTIONS))
    assert not heard.publisher.answers
    heard.publisher.on_event(STOPPED, heard.publisher.begin("how?", OPTIONS))
    assert not heard.publisher.answers
    assert [(number, type(event)) for number, event in await heard.updates()] == [
        (1, Asked),
        (1, Failed),
        (1, Asked),
        (1, Ended),
        (0, Rewound),
    ]


def test_an_answer_that_is_refused_before_it_began_counts_no_more() -> None:
    publisher = Heard().publisher
    for question in ("one", "two"):
        answer = publisher.begin(question, OPTIONS)
        for event in ALONE:
            publisher.on_event(event, answer)
    publisher.on_event(Refused(ContextLengthError("Too long.")))
    publisher.on_event(Earlier(Committed((1,), 1)))
    publisher.on_event(Settled((1, 3), AnswerOutcome.CORRECTED, Finish.STOP))
    assert [publisher.is_part(text) for text in publisher.answers] == [False, True]
    assert (publisher.parts(1), publisher.parts(2)) == (0, 1)
    assert [text.committed + text.provisional for text in publisher.answers] == ["bc", "bd"]
