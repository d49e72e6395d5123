"""Who wrote an answer's text, from its tokens to what the page receives."""

from __future__ import annotations

import json

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import AnswerEvent, Committed, Ended
from moa_client.conversation.text_runs import Provenance, TextRun
from moa_client.surface.messages import fields_of, update_of
from moa_shared.protocol.finish_rule import Finish

from tests.support.answer_events import decode_bytes
from tests.support.told import Told

DRAFT, SERVER, TARGET = Provenance.DRAFT, Provenance.SERVER, Provenance.TARGET


def test_a_surface_that_wants_runs_holds_those_of_the_conversation() -> None:
    told, shown = Told(decode_bytes, "why?", 1), AnswerText("why?", 1)
    start, snow, held = b"ab", "☃".encode(), "☃".encode()[:2]
    events: list[AnswerEvent] = [
        Committed(tuple(start), writers=(DRAFT, SERVER)),
        Committed(tuple(snow), writers=(SERVER, SERVER, TARGET)),  # the last byte makes the character
        Committed(tuple(held), writers=(DRAFT, DRAFT)),
        Ended(Finish.END_OF_TEXT),
    ]
    for event in events:
        fields = json.loads(json.dumps(fields_of(told.tell(event), with_runs=True)))
        shown.apply(update_of(fields).event)
    assert shown.runs == told.text.runs
    assert shown.runs == (TextRun(1, DRAFT), TextRun(1, SERVER), TextRun(2, TARGET))
    assert "runs" not in fields_of(told.tell(events[0]))
