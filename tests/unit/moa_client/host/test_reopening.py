"""Answers that were kept, as surfaces get them again."""

from __future__ import annotations

from dataclasses import replace

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.text_runs import Provenance
from moa_client.history.records import AnswerStatus, StoredAnswer
from moa_client.host.publisher import MOST_ATTRIBUTED, attributed

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
