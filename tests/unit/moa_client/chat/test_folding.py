"""What a chat shows of answers that come with reasoning."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.folding import Folding, Shows
from moa_client.chat.messages import thinking_words
from moa_client.chat.views import JsonView, make_view
from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    Asked,
    Committed,
    Corrected,
    Ended,
    LinkState,
    Provisional,
    SurfaceEvent,
)
from moa_client.tools.thinking import ReasoningMarks
from moa_shared.protocol.finish_rule import Finish

MARKS = ReasoningMarks(("<think>",), ("</think>",))
ANSWER = "<think>\nFirst.\n</think>\n\nAn answer."


def folding(shows: Shows = "fold") -> Folding:
    return Folding(MARKS, lambda: shows)


def tell(view: Any, events: list[SurfaceEvent]) -> AnswerText:
    text = AnswerText(number=1)
    view.begin()
    for event in events:
        text.apply(event)
        view.show(Update(event, 1), text)
    view.end(text)
    return text


@given(st.lists(st.integers(0, len(ANSWER))), st.sampled_from(["fold", "show"]))
def test_what_is_shown_grows_and_does_not_depend_on_its_pieces(places: list[int], shows: Shows) -> None:
    fold, text, before = folding(shows), AnswerText(number=1), ""
    for end in [*sorted(places), len(ANSWER)]:
        text.committed = ANSWER[:end]
        text.provisional = ANSWER[end:]
        shown = fold.shown(text)
        assert shown.committed.startswith(before)
        assert (
            shown.committed + shown.provisional == ("" if shows == "fold" else "Thinking:\nFirst.\n\n") + "An answer."
        )
        before = shown.committed


def test_a_line_tells_of_reasoning_while_it_comes() -> None:
    fold, text = folding(), AnswerText(number=1)
    text.apply(Committed((1, 2, 3), text="<think>\nFirst."))
    fold.shown(text)
    assert thinking_words(fold.thinking_tokens) == "thinking ... 3 tokens | "
    statuses: list[str] = []
    page = SimpleNamespace(show=lambda _, status: statuses.append(status))
    status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
    view = make_view(
        lambda: status, print, print, json_events=False, unverified=True, folding=fold, page=cast("Any", page)
    )
    view.show(Update(Committed((), text=""), 1), text)
    assert statuses == ["thinking ... 3 tokens | link good"]
    text.apply(Committed((4, 5), text="</think>An"))
    assert fold.shown(text).committed == "An"
    assert thinking_words(fold.thinking_tokens) == ""


def test_an_answer_that_goes_on_shows_only_what_is_new() -> None:
    fold, text = folding(), AnswerText(number=1)
    text.apply(Committed((1, 2), text="<think>First.</think>An"))
    text.apply(Ended(Finish.MAX_TOKENS))
    fold.shown(text)
    text.seen, text.is_running = len(text.committed), True
    text.apply(Committed((3,), text=" answer."))
    assert fold.shown(text).unseen == " answer."


def test_programs_get_reasoning_in_fields_of_its_own() -> None:
    out: list[str] = []
    events: list[SurfaceEvent] = [
        Asked("Why?"),
        Committed((1,), text="<think>Fi"),
        Provisional((2,), (0.9,), "rst.</think>An"),
        Corrected(1),
        Committed((2, 3), text="rst.</think>"),
        Committed((4,), text="An answer <"),
        Ended(Finish.STOP),
    ]
    tell(JsonView(out.append, folding()), events)
    lines = [json.loads(line) for line in out]
    apart = [(line["event"], line.get("reasoning"), line.get("text")) for line in lines]
    assert apart == [
        ("asked", None, None),
        ("committed", "Fi", ""),
        ("provisional", None, None),
        ("corrected", None, None),
        ("committed", "rst.", ""),
        ("committed", "", "An answer <"),
        ("ended", "", ""),
    ]
    assert (lines[2]["provisional_reasoning"], lines[2]["provisional"]) == ("rst.", "An")
