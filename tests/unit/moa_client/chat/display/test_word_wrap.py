from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.display.word_wrap import wrap_words
from wcwidth import wcswidth


def test_words_are_whole_and_tables_keep_their_columns() -> None:
    text = "/set NAME VALUE     set it for the next answers\nDim text was written here.\n\nend"
    assert wrap_words(text, 42) == (
        "/set NAME VALUE     set it for the next\n                    answers\nDim text was written here.\n\nend"
    )


@given(st.text(alphabet="ab -漢", max_size=60), st.integers(8, 30))
def test_no_line_is_wider_than_the_terminal(text: str, columns: int) -> None:
    assert all(wcswidth(line) <= columns for line in wrap_words(text, columns).split("\n"))
