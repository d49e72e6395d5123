"""What a surface holds after each update is what the conversation holds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import AnswerText, Corrections, differing
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Ended,
    Failed,
    HeldBack,
    Provisional,
    Refused,
    Settled,
)
from moa_client.surface.messages import fields_of, update_of
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.finish_rule import Finish

from tests.support.answer_events import decode_bytes, events_of
from tests.support.told import Told, letters

ALONE = (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True))
TOO_LONG = ContextLengthError("Too long.")


@pytest.mark.parametrize("is_far", [False, True], ids=["here", "in another process"])
@given(text=st.text("añ€😀", max_size=12), data=st.data())
def test_updates_add_up_to_the_text(is_far: bool, text: str, data: st.DataObject) -> None:
    told, shown = Told(decode_bytes, "why?", 3), AnswerText("why?", 3)
    before = ""
    for event in data.draw(events_of(text)):
        update = told.tell(event)
        shown.apply((update_of(json.loads(json.dumps(fields_of(update)))) if is_far else update).event)
        assert shown.committed == told.text.committed
        assert (shown.provisional, shown.waiting) == (told.text.provisional, told.text.waiting)
        assert shown.likely == told.text.likely <= len(shown.provisional)
        assert sum(run.characters for run in shown.runs) == len(shown.committed)
        assert shown.committed.startswith(before)
        before = shown.committed
    assert (shown.committed, shown.ended, shown.finish) == (text, told.text.ended, told.text.finish)


def test_an_answer_runs_until_it_ends_and_is_unsettled_until_it_is_decided() -> None:
    told = Told()
    assert (told.text.is_running, told.text.is_unsettled) == (True, False)
    for event in ALONE:
        told.tell(event)
    assert (told.text.is_running, told.text.is_unsettled, told.text.ended) == (False, True, "abc")
    told.tell(Settled((4,), AnswerOutcome.CORRECTED, Finish.STOP))
    assert (told.text.is_unsettled, told.text.finish) == (False, Finish.STOP)
    assert (told.text.committed, told.text.ended) == ("ae", "abc")
    assert not Told(letters, "", 1, Committed((0,)), Ended(Finish.STOP)).text.is_unsettled


def test_what_is_refused_or_held_back_stays_as_it_is() -> None:
    told = Told(letters, "", 1, *ALONE[:2])
    told.tell(HeldBack())
    assert (told.text.committed, told.text.provisional, told.text.waiting) == ("a", "bc", (1, 2))
    told.tell(ALONE[2])
    told.tell(Refused(TOO_LONG))
    assert (told.text.committed, told.text.provisional) == ("a", "bc")
    assert not told.text.is_unsettled


def test_what_follows_less_likely_text_is_no_likelier_and_confirmed_text_is_no_part_of_it() -> None:
    told = Told(letters, "", 1, Provisional((1, 2)), Provisional((3,), likely=False), Provisional((4,)))
    assert (told.text.provisional, told.text.likely) == ("bcde", 2)
    told.tell(Committed((1,), 1))
    assert (told.text.provisional, told.text.likely) == ("cde", 1)
    told.tell(Committed((2, 3), 2))
    assert (told.text.provisional, told.text.likely) == ("e", 0)
    told.tell(Committed((4,), 1))
    told.tell(Provisional((5,)))
    assert (told.text.provisional, told.text.likely) == ("f", 1)


def test_an_answer_that_fails_is_what_is_committed_of_it() -> None:
    told = Told(letters, "", 1, *ALONE[:2])
    told.text.apply(Failed(TOO_LONG, text="b"))
    assert (told.text.committed, told.text.provisional, told.text.is_running) == ("ab", "", False)


@pytest.mark.parametrize(
    ("shown", "text", "replaced"),
    [
        ("is Pariss, which lies on the Seine", "is Paris, which lies on the Seine and has", ["Paris,"]),
        ("a cat sat on the mat, and it slept there", "a cat lay on the mat, and he slept there", ["lay", "he"]),
        ("a very big house stands here", "a big house stands here", ["big"]),
        ("it is blue", "it is\n\ngreen, by far, and never was blue", ["green,"]),
        ("one two", "one two three", []),
        ("one two", "one", []),
        ("天空是蓝色的", "天空是红色的,因为", ["红色的"]),
    ],
)
def test_what_replaces_shown_text_is_found_in_whole_words(shown: str, text: str, replaced: list[str]) -> None:
    assert [text[begin:end] for begin, end in differing(shown, text)] == replaced


@given(st.text("ab  ", max_size=30), st.text("ab  ", max_size=30), st.data())
def test_corrections_do_not_depend_on_pieces(shown: str, text: str, data: st.DataObject) -> None:
    corrections = Corrections()
    corrections.update("", shown)
    corrections.update("", "")
    at = 0
    while at < len(text):
        end = data.draw(st.integers(at + 1, len(text)))
        corrections.update(text[at:end], "")
        at = end
    assert list(corrections.stretches) == differing(shown, text)
