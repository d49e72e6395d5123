"""The part of a recorded answer that is drawn."""

from __future__ import annotations

from moa_bench.timeline.timeline import Timeline
from moa_bench.timeline.traced_link import Note


def test_a_span_begins_with_the_second_verdict() -> None:
    notes = [Note(at_s, False, "verdict", 20, tokens=1) for at_s in (1.0, 2.0, 2.5, 3.5)]
    line = Timeline("streamed", (Note(0.5, True, "ask", 9), *notes), ((1.5, 1.75), (2.0, 2.25), (2.75, 3.25)))
    span = line.span(1.0)
    assert [note.at_s for note in span.notes] == [0.0, 0.5]
    assert span.drafting == ((0.0, 0.25),)


def test_an_answer_of_one_verdict_can_be_drawn() -> None:
    line = Timeline("streaming", (Note(1.0, False, "verdict", 20, tokens=1),), ())
    assert [note.at_s for note in line.span(1.0).notes] == [0.0]
