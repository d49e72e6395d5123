"""What a drafter that writes alone must not repeat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting import barred_after

texts = st.lists(st.integers(0, 2), max_size=40)


def test_what_would_close_a_run_is_barred() -> None:
    assert barred_after([1, 2, 3, 4, 1, 2, 3], run=4) == {4}
    assert barred_after([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], run=4) == {4, 5}
    assert barred_after([1, 2, 3, 4, 2, 2, 3], run=4) == frozenset()
    assert barred_after([], run=4) == frozenset()


@given(texts, st.integers(2, 5))
def test_no_run_is_written_twice(text: list[int], run: int) -> None:
    written: list[int] = []
    for token in text:
        if token not in barred_after(written, run):
            written.append(token)
    runs = [tuple(written[at : at + run]) for at in range(len(written) - run + 1)]
    assert len(runs) == len(set(runs))
