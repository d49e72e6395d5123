"""An answer on a surface: its reasoning and its text, as both come."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.answer_split import AnswerSplit, ReasoningMarks, marks_from
from moa_client.tools.thinking import THINKINGS

HARMONY, _, _, TAGS = (
    ReasoningMarks(each.openings, each.closings, each.is_repeated, each.others, opened=("", "high"))
    for each in THINKINGS
)
ANSWER = (
    "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>commentary<|message|>Then.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>\n An answer. "
)


def test_reasoning_grows_apart_from_the_text() -> None:
    split = TAGS.split(None)
    split.read("Fi", 1)
    assert (split.reasoning, split.text, split.is_thinking) == ("Fi", "", True)
    split.read("First.\n</thi", 3)
    assert split.ahead("nk>\n\nAn answer") == ("", "An answer")
    split.read("First.\n</think>\n\nAn", 5)
    split.read("First.\n</think>\n\nAn answer", 6)
    assert (split.reasoning, split.text, split.is_thinking) == ("First.", "An answer", False)
    assert split.reasoning_tokens == 5


def test_an_answer_whose_prompt_opens_no_reasoning_begins_with_its_text() -> None:
    split = TAGS.split("none")
    split.read("An answer", 2)
    assert (split.text, split.reasoning, split.reasoning_tokens) == ("An answer", "", 0)


def test_a_model_without_reasoning() -> None:
    split = AnswerSplit()
    split.read("<think>", 1)
    assert split.text == "<think>"
    assert split.ahead(" more") == ("", " more")


@given(st.lists(st.integers(0, len(ANSWER))))
def test_the_marks_of_channels_are_never_shown(places: list[int]) -> None:
    split = HARMONY.split("none")
    for end in [*sorted(places), len(ANSWER)]:
        split.read(ANSWER[:end])
        assert "<|" not in "".join([split.text, split.reasoning])
    reasoning, text = split.ahead()
    assert (split.reasoning + reasoning, split.text + text) == ("First.", "Then.An answer. ")


def test_marks_cross_the_socket() -> None:
    assert (
        marks_from({name: list(value) if name != "repeated" else value for name, value in asdict(TAGS).items()}) == TAGS
    )
    assert marks_from(None) is None
