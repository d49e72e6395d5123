from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.thinking import (
    THINKINGS,
    AnswerSplit,
    ReasoningMarks,
    ReasoningPiece,
    TextPiece,
    Thinking,
    ThinkingReader,
    find_thinking,
    marks_from,
)

from tests.support.tool_calls import cuts

HARMONY, GEMMA4, MISTRAL, TAGS = THINKINGS
PARTS = [
    "<think>",
    "</think>",
    "<|channel|>analysis<|message|>",
    "<|start|>assistant",
    "<|end|>",
    "[THINK]",
    "[/THINK]",
]
PARTS += ["<|channel>thought\n", "<channel|>", "\n", " ", "a", "<", "Hello"]


def split(
    thinking: Thinking, text: str, *, is_open: bool = False, places: Sequence[int] = ()
) -> list[ReasoningPiece | TextPiece]:
    reader = ThinkingReader(thinking, is_open=is_open)
    ends = [0, *sorted(place for place in places if place < len(text)), len(text)]
    pieces: list[ReasoningPiece | TextPiece] = []
    for start, end in pairwise(ends):
        pieces += reader.push(text[start:end])
    pieces += reader.finish()
    whole: list[ReasoningPiece | TextPiece] = []
    for piece in pieces:
        if whole and type(whole[-1]) is type(piece):
            whole[-1] = type(piece)(whole[-1].text + piece.text)
        else:
            whole.append(piece)
    return whole


def test_reasoning_before_an_answer() -> None:
    text = "<think>\nFirst.\n\nThen.\n</think>\n\nAn answer.\n"
    expected = [ReasoningPiece("First.\n\nThen."), TextPiece("An answer.\n")]
    assert split(TAGS, text) == expected
    assert split(TAGS, text.removeprefix("<think>\n"), is_open=True) == expected
    assert split(MISTRAL, "[THINK]First.[/THINK]An answer.") == [ReasoningPiece("First."), TextPiece("An answer.")]
    assert split(GEMMA4, "<|channel>thought\nFirst.<channel|>An answer.") == [
        ReasoningPiece("First."),
        TextPiece("An answer."),
    ]


def test_no_reasoning() -> None:
    assert split(TAGS, "<think>\n\n</think>\n\nHello") == [TextPiece("Hello")]
    assert split(TAGS, " Hello ") == [TextPiece(" Hello ")]


def test_an_answer_may_tell_of_the_tags() -> None:
    text = "Models write <think> and </think>."
    assert split(TAGS, text) == [TextPiece(text)]
    assert split(TAGS, f"<think>x</think>{text}") == [ReasoningPiece("x"), TextPiece(text)]


def test_reasoning_that_is_cut() -> None:
    assert split(TAGS, "<think>\nFirst. </thi") == [ReasoningPiece("First. </thi")]
    assert split(TAGS, "<thi") == [TextPiece("<thi")]


def test_the_channel_of_analysis_comes_again_and_again() -> None:
    text = (
        "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>commentary<|message|>A.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Then.<|end|><|start|>assistant<|channel|>final<|message|>B."
    )
    assert split(HARMONY, text) == [
        ReasoningPiece("First."),
        TextPiece("<|start|>assistant<|channel|>commentary<|message|>A.<|end|>"),
        ReasoningPiece("Then."),
        TextPiece("<|start|>assistant<|channel|>final<|message|>B."),
    ]


@pytest.mark.parametrize("thinking", THINKINGS, ids=lambda thinking: thinking.sign)
@given(text=st.lists(st.sampled_from(PARTS), max_size=10).map("".join), places=cuts(), is_open=st.booleans())
def test_a_text_is_split_alike_in_all_pieces(thinking: Thinking, text: str, places: list[int], is_open: bool) -> None:
    whole = split(thinking, text, is_open=is_open)
    assert split(thinking, text, is_open=is_open, places=places) == whole
    assert split(thinking, text, is_open=is_open, places=range(len(text))) == whole


@pytest.mark.parametrize(
    ("chat_template", "thinking"),
    [
        ("{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking }}", HARMONY),
        ("{{- '<|channel>thought\\n<channel|>' -}}", GEMMA4),
        ("{{ '[THINK]' + block.thinking + '[/THINK]' }}", MISTRAL),
        ("{{- '<think>\\n' }}", TAGS),
        ("{{ message.content }}", None),
    ],
)
def test_a_family_is_known_by_its_template(chat_template: str, thinking: Thinking | None) -> None:
    assert find_thinking(chat_template) is thinking


def test_a_prompt_may_have_opened_it() -> None:
    assert TAGS.is_open("<|im_start|>assistant\n<think>\n")
    assert not TAGS.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not TAGS.is_open("<|im_start|>assistant\n")
    assert GEMMA4.is_open("<|turn>model\n<|channel>thought\n")


# ------------------------------------------------------------ on a surface

CHANNELS, _, _, MARKS = (
    ReasoningMarks(each.openings, each.closings, each.is_repeated, each.others, opened=("", "high"))
    for each in THINKINGS
)
ANSWER = (
    "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>commentary<|message|>Then.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>\n An answer. "
)


def test_reasoning_grows_apart_from_the_text() -> None:
    split = MARKS.split(None)
    split.read("Fi", 1)
    assert (split.reasoning, split.text, split.is_thinking) == ("Fi", "", True)
    split.read("First.\n</thi", 3)
    assert split.ahead("nk>\n\nAn answer") == ("", "An answer")
    split.read("First.\n</think>\n\nAn", 5)
    split.read("First.\n</think>\n\nAn answer", 6)
    assert (split.reasoning, split.text, split.is_thinking) == ("First.", "An answer", False)
    assert split.reasoning_tokens == 5


def test_reasoning_that_comes_at_once_is_counted() -> None:
    split = MARKS.split("none")
    split.read("<think>Hm</think>An", 4)
    split.read("<think>Hm</think>An answer", 5)
    assert split.reasoning_tokens == 4


def test_an_answer_whose_prompt_opens_no_reasoning_begins_with_its_text() -> None:
    split = MARKS.split("none")
    split.read("An answer", 2)
    assert (split.text, split.reasoning, split.reasoning_tokens) == ("An answer", "", 0)


def test_a_model_without_reasoning() -> None:
    split = AnswerSplit()
    split.read("<think>", 1)
    assert split.text == "<think>"
    assert split.ahead(" more") == ("", " more")


@given(st.lists(st.integers(0, len(ANSWER))))
def test_the_marks_of_channels_are_never_shown(places: list[int]) -> None:
    split = CHANNELS.split("none")
    for end in [*sorted(places), len(ANSWER)]:
        split.read(ANSWER[:end])
        assert "<|" not in "".join([split.text, split.reasoning])
    reasoning, text = split.ahead()
    assert (split.reasoning + reasoning, split.text + text) == ("First.", "Then.An answer. ")


def test_marks_cross_the_socket() -> None:
    assert (
        marks_from({name: list(value) if name != "repeated" else value for name, value in asdict(MARKS).items()})
        == MARKS
    )
    assert marks_from(None) is None
