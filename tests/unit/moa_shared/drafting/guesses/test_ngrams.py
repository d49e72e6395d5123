"""The table of what a target usually says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from moa_shared.drafting import NgramTable

Array = npt.NDArray[Any]
CONTEXTS = np.array([[-1, -1, 5], [-1, 4, 5], [3, 4, 5], [-1, -1, 0]], np.int32)
COUNTS = np.array([2, 1, 1, 1], np.uint8)
TOKENS = np.array([1, 2, 3, 4, 9], np.int32)
CHANCES = np.array([102, 51, 51, 255, 1], np.uint8)


def test_the_longest_known_context_decides() -> None:
    table = NgramTable(CONTEXTS, COUNTS, TOKENS, CHANCES)
    assert len(table) == 4
    assert table.after([3, 4, 5]) == [(4, 0.0)]
    assert table.after([8, 3, 4, 5]) == [(4, 0.0)]
    assert table.after([8, 4, 5]) == [(3, math.log(0.2))]
    assert table.after([4]) == []
    assert table.after([]) == []
    assert table.after([9, 9, 5]) == [(1, math.log(0.4)), (2, math.log(0.2))]


def test_a_context_is_not_taken_for_one_with_zeros_in_front() -> None:
    """Token 0 is a token like any other."""
    table = NgramTable(CONTEXTS, COUNTS, TOKENS, CHANCES)
    assert [token for token, _ in table.after([0])] == [9]
    assert [token for token, _ in table.after([0, 5])] == [1, 2]
    assert table.after([0, 0, 7]) == []


@pytest.mark.parametrize(
    ("contexts", "counts", "tokens", "chances"),
    [
        (CONTEXTS[:, :2], COUNTS, TOKENS, CHANCES),
        (CONTEXTS[:3], COUNTS, TOKENS, CHANCES),
        (CONTEXTS, COUNTS + 1, TOKENS, CHANCES),
        (CONTEXTS, COUNTS, TOKENS[:-1], CHANCES),
        (CONTEXTS, COUNTS, TOKENS - 2, CHANCES),
        (CONTEXTS, COUNTS, TOKENS, CHANCES * 0),
        (CONTEXTS + (1 << 22), COUNTS, TOKENS, CHANCES),
    ],
)
def test_what_is_no_table_is_refused(contexts: Array, counts: Array, tokens: Array, chances: Array) -> None:
    with pytest.raises(ValueError):
        NgramTable(contexts, counts, tokens, chances)


def test_an_empty_table_knows_nothing() -> None:
    empty = NgramTable(CONTEXTS[:0], COUNTS[:0], TOKENS[:0], CHANCES[:0])
    assert empty.after([5]) == []
