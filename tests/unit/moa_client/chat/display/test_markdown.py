from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.display.layout import Markdown, Weight

MARKS = {Weight.BOLD: "b", Weight.ITALIC: "i", Weight.CODE: "c", Weight.BOLD | Weight.CODE: "C"}


def shown(text: str, before: str = "") -> tuple[str, str]:
    """What is shown of a text, and a letter for how each of it looks."""
    markdown = Markdown()
    markdown.pass_by(before)
    looks = markdown.looks(text)
    assert len(looks) == len(text)
    pairs = [
        (character if look.shown is None else look.shown, look.weight)
        for character, look in zip(text, looks, strict=True)
    ]
    return "".join(glyph for glyph, _ in pairs), "".join(MARKS.get(weight, "-") for glyph, weight in pairs if glyph)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ("plain", "-----")),
        ("a **bold** word", ("a bold word", "--bbbb-----")),
        ("a *few* _words_", ("a few words", "--iii-iiiii")),
        ("`x * y * z`", ("x * y * z", "ccccccccc")),
        ("**a `b` c**", ("a b c", "bbCbb")),
        ("## A title", ("A title", "bbbbbbb")),
        ("- one\n  * two", ("• one\n  • two", "-------------")),
        ("1. one", ("1. one", "------")),
        ("2 * 3 * 4 and snake_case_name", ("2 * 3 * 4 and snake_case_name", "-" * 29)),
        ("**not closed", ("**not closed", "-" * 12)),
        ("**not closed\nhere**", ("**not closed\nhere**", "-" * 19)),
        ("#hashtag", ("#hashtag", "-" * 8)),
        ("```py\nx = **y\n```\n**z**", ("```py\nx = **y\n```\nz", "ccccc-ccccccc-ccc-b")),
    ],
)
def test_marks_are_hidden_and_what_they_enclose_stands_out(text: str, expected: tuple[str, str]) -> None:
    assert shown(text) == expected


def test_what_comes_before_decides_about_blocks_and_lines() -> None:
    assert shown("**x**", before="```\ncode\n") == ("**x**", "ccccc")
    assert shown("**x**", before="```\ncode\n```\n") == ("x", "b")
    assert shown("ld** x", before="**bo") == ("ld x", "bb--")
    assert shown("- x", before="a ") == ("- x", "---")


def test_the_beginning_of_a_line_can_be_given_back() -> None:
    markdown = Markdown()
    markdown.pass_by("a\n**bo")
    markdown.go_back("**bo")
    assert [look.shown for look in markdown.looks("**bo**")] == ["", "", None, None, "", ""]


@given(st.text("*_`#~- ab\n1.", max_size=60), st.integers(0, 60))
def test_complete_lines_look_the_same_wherever_the_text_is_cut(text: str, cut: int) -> None:
    whole = Markdown().looks(text)
    parted = Markdown()
    parted.pass_by(text[:cut])
    assert parted.looks(text[cut:]) == whole[cut:]
