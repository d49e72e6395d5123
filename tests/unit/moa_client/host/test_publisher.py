"""What is told of an answer when something fails at its end, or nothing is left of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from moa_client.conversation import events
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.text_runs import Provenance
from moa_client.history.records import AnswerStatus, StoredAnswer
from moa_client.host.publisher import MOST_ATTRIBUTED, Publisher, attributed
from moa_client.surface.open_conversation import Subscription
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_engine import ScriptedEngine

OPTIONS = AnswerOptions()
GONE = UnavailableError("Gone.")
STOPPED = events.Ended(Finish.CANCELLED)


class Heard:
    """A publisher without a journal, and what a surface hears of it."""

    def __init__(self) -> None:
        self.publisher = Publisher(cast("Any", ScriptedEngine()), None)
        self._subscription = Subscription()
        self.publisher.subscriptions.append(self._subscription)

    async def updates(self) -> list[tuple[int, events.SurfaceEvent]]:
        self._subscription.close()
        return [(update.answer, update.event) async for update in self._subscription.updates()]


async def test_what_fails_after_an_answer_has_ended_is_not_about_it() -> None:
    heard = Heard()
    answer = heard.publisher.begin("why?", OPTIONS)
    for event in (events.Committed((0,)), events.Ended(Finish.STOP)):
        heard.publisher.on_event(event, answer)
    heard.publisher.break_off(STOPPED, answer)
    heard.publisher.break_off(events.Failed(GONE, taken_back=True), answer)
    assert [text.committed for text in heard.publisher.answers] == ["a"]
    assert await heard.updates() == [
        (1, events.Asked("why?", OPTIONS)),
        (1, events.Committed((0,), text="a")),
        (1, events.Ended(Finish.STOP)),
        (0, events.Failed(GONE)),
    ]


KEPT = StoredAnswer(
    1,
    "Why?",
    AnswerOptions(stop=("!",)),
    tokens=(7, 7, *b"ab", *"é".encode(), *b"c!"),
    provenance=b"PPDCSSTT",
    text="abéc",
    standing=AnswerStatus.DECIDED,
    finish="stop",
)
DRAFT, COPY, SERVER, TARGET = Provenance.DRAFT, Provenance.COPY, Provenance.SERVER, Provenance.TARGET


def test_only_the_newest_answers_are_decoded_for_it() -> None:
    long = replace(KEPT, tokens=tuple(range(MOST_ATTRIBUTED)), provenance=b"T" * MOST_ATTRIBUTED)
    assert attributed([KEPT, KEPT]) == 0
    assert attributed([KEPT, long]) == 1
    assert attributed([KEPT, long, KEPT]) == 2
