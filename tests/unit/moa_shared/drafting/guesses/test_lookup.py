from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting import TextIndex


def by_search(text: list[int], ahead: list[int], longest: int) -> tuple[int, int]:
    newest = [*text, *ahead]
    for size in range(min(longest, len(newest)), 0, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == newest[-size:]:
                return start + size, size
    return 0, 0


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(1, 4),
)
def test_it_finds_the_newest_occurrence_of_the_longest_run(
    pieces: list[list[int]], ahead: list[int], longest: int
) -> None:
    index = TextIndex(longest)
    index.restart([1, 1])
    index.restart([])
    for piece in pieces:
        index.extend(piece)
    text = [token for piece in pieces for token in piece]
    assert index.tokens == text
    position, size = by_search(text, ahead, longest)
    assert index.matched(ahead) == (position, size)
    assert index.continuation(3, ahead) == (text[position : position + 3] if size else [])
    assert index.matched(ahead, shortest=size + 1) == (0, 0)
