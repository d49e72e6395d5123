from __future__ import annotations

import numpy as np
import pytest
from moa_server.verifier.paged.pool import FILLER, PAGE_ROWS, BatchPart, bucket, lay_out


def test_rows_of_conversations_in_turn_then_rows_that_fill() -> None:
    tree = BatchPart([7, 8, 9], [0, 1, 1], PAGE_ROWS - 1, [4, 2], [-1, 0, 0])
    chain = BatchPart([5, 6], [0, 1], 3, [9])
    batch = lay_out([tree, chain], 8)
    assert batch.rows == 8
    assert batch.tokens.tolist() == [7, 8, 9, 5, 6, 0, 0, 0]
    assert batch.positions.tolist() == [63, 64, 64, 3, 4, 0, 0, 0]
    assert batch.slots.tolist() == [4 * 64 + 63, 2 * 64, 2 * 64 + 1, 9 * 64 + 3, 9 * 64 + 4, 0, 0, 0]
    assert batch.firsts == [0, 3, 5, 6, 7, 8]
    assert list(batch.parts) == [tree, chain, FILLER, FILLER, FILLER]
    assert not batch.is_causal
    assert lay_out([chain]).is_causal


def test_the_pages_in_use_are_those_of_the_rows_held_and_new() -> None:
    assert BatchPart([1], [0], PAGE_ROWS - 1, [4, 2, 8]).used_pages() == [4]
    assert BatchPart([1], [0], PAGE_ROWS, [4, 2, 8]).used_pages() == [4, 2]


def test_a_row_sees_its_ancestors_and_itself() -> None:
    assert BatchPart([1, 1, 1], [0, 1, 2], 5, [1]).seen().tolist() == np.tri(3, dtype=bool).tolist()
    tree = BatchPart([1, 1, 1, 1], [0, 0, 1, 2], 5, [1], [-1, -1, 0, 2])
    assert tree.seen().tolist() == [
        [True, False, False, False],
        [False, True, False, False],
        [True, False, True, False],
        [True, False, True, True],
    ]


@pytest.mark.parametrize(("rows", "filled"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (64, 64), (65, 128)])
def test_forwards_are_filled_to_powers_of_two(rows: int, filled: int) -> None:
    assert bucket(rows) == filled
