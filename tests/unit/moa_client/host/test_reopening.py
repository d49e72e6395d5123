"""Answers that were kept, as surfaces get them again."""

from __future__ import annotations

from dataclasses import replace

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.text_runs import Provenance, TextRun
from moa_client.history.records import AnswerStatus, StoredAnswer
from moa_client.host.publisher import MOST_ATTRIBUTED, attributed, reopened

from tests.support.answer_events import decode_bytes

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


def test_who_wrote_a_kept_answer_is_told_where_it_is_wanted() -> None:
    runs = (TextRun(1, DRAFT), TextRun(1, COPY), TextRun(1, SERVER), TextRun(1, TARGET))
    assert reopened(KEPT, 1, decode_bytes, has_runs=True).text.runs == runs
    cut = replace(KEPT, text="abé")  # by the limits of a surface, or an older program
    assert reopened(cut, 1, decode_bytes, has_runs=True).text.runs == runs[:3]
    assert reopened(KEPT, 1, decode_bytes).text.runs == (TextRun(4),)


def test_only_the_newest_answers_are_decoded_for_it() -> None:
    long = replace(KEPT, tokens=tuple(range(MOST_ATTRIBUTED)), provenance=b"T" * MOST_ATTRIBUTED)
    assert attributed([KEPT, KEPT]) == 0
    assert attributed([KEPT, long]) == 1
    assert attributed([KEPT, long, KEPT]) == 2
