"""What a surface holds after each update is what the conversation holds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import AnswerText, Corrections, differing
from moa_client.surface.messages import fields_of, update_of

from tests.support.answer_events import decode_bytes, events_of
from tests.support.told import Told


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
