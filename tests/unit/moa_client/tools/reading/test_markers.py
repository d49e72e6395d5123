from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.reading.markers import MarkerSearch

MARKERS = ("<a>", "</a>", "<b")


@given(st.text("<>/ab", max_size=20))
def test_the_first_marker_is_found_and_all_else_is_text(text: str) -> None:
    search, taken = MarkerSearch(), list[str]()
    for char in text:
        search.add(char)
        while found := search.take(MARKERS):
            taken.append(found)
        assert not search.held or any(marker.startswith(search.held) for marker in MARKERS)
    assert "".join(taken) + search.drain() == text
    between = "".join("\0" if each in MARKERS else each for each in taken)
    assert not any(marker in between for marker in MARKERS)
