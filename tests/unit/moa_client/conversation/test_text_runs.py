"""Who wrote an answer's text, from its tokens to what the page receives."""

from __future__ import annotations

import json

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import AnswerEvent, Committed, Ended
from moa_client.conversation.text_runs import Provenance, TextRun, joined
from moa_client.surface.messages import fields_of, update_of
from moa_shared.protocol.finish_rule import Finish

from tests.support.answer_events import decode_bytes
from tests.support.told import Told

DRAFT, SERVER, TARGET = Provenance.DRAFT, Provenance.SERVER, Provenance.TARGET


def test_letters_are_one_provenance_each() -> None:
    assert len({each.letter for each in Provenance}) == len(Provenance)


def test_neighbours_of_one_writer_are_one_run_unless_their_chances_are_known() -> None:
    assert joined([TextRun(2, DRAFT), TextRun(0, TARGET), TextRun(1, DRAFT), TextRun(1)]) == (
        TextRun(3, DRAFT),
        TextRun(1),
    )
    likely = (TextRun(2, DRAFT, 0.9), TextRun(1, DRAFT, 0.5))
    assert joined(likely) == likely


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
