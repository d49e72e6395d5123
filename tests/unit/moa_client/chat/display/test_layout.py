from __future__ import annotations

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
