"""Pages of the pool, the rows of a batch, and tensors as arrays."""

import numpy as np
import pytest
import torch
from moa_server.verifier.pool import FILLER, PAGE_ROWS, BatchPart, PagedCache, PagePool, lay_out, over_arrays
from moa_shared.errors import ConfigError

pytestmark = pytest.mark.torch

LAYERS, KV_HEADS, HEAD_DIM = 2, 3, 4
ROW_BYTES = LAYERS * KV_HEADS * 2 * HEAD_DIM * 4
CPU = torch.device("cpu")


def make_pool(pages: int) -> PagePool:
    return PagePool(LAYERS, KV_HEADS, HEAD_DIM, pages * PAGE_ROWS * ROW_BYTES, torch.float32, CPU)


def test_a_conversation_takes_a_page_at_a_time_and_no_more_than_announced() -> None:
    pool = make_pool(5)
    cache = PagedCache(pool)
    assert cache.nbytes == 0
    for rows, pages in ((1, 1), (PAGE_ROWS, 1), (PAGE_ROWS + 1, 2), (3 * PAGE_ROWS, 3)):
        cache.reserve(rows)
        assert cache.nbytes == cache.most_nbytes(rows) == pages * PAGE_ROWS * ROW_BYTES
    assert pool.nbytes == 5 * PAGE_ROWS * ROW_BYTES


def test_when_all_pages_are_in_use_what_is_held_stays() -> None:
    pool = make_pool(3)
    first, second = PagedCache(pool), PagedCache(pool)
    first.reserve(2 * PAGE_ROWS)
    second.reserve(1)
    held = list(second.pages)
    with pytest.raises(MemoryError, match="All 3 pages of keys and values are in use"):
        second.reserve(2 * PAGE_ROWS)
    assert second.pages == held
    first.release()
    second.reserve(3 * PAGE_ROWS)
    assert sorted(second.pages) == [1, 2, 3]


def test_pages_of_a_released_conversation_are_used_again_before_fresh_ones() -> None:
    pool = make_pool(9)
    first, second = PagedCache(pool), PagedCache(pool)
    first.reserve(3 * PAGE_ROWS)
    pages = list(first.pages)
    first.release()
    assert (first.nbytes, first.length) == (0, 0)
    second.reserve(4 * PAGE_ROWS)
    assert second.pages == [*pages, 4]
    second.reserve(9 * PAGE_ROWS)
    del second  # which gives them back
    first.reserve(9 * PAGE_ROWS)


def test_a_pool_has_a_page_to_give_out_but_no_more_than_the_machine_has() -> None:
    PagedCache(PagePool(LAYERS, KV_HEADS, HEAD_DIM, 1, torch.float32, CPU)).reserve(1)
    with pytest.raises(ConfigError, match="There is no room for"):
        make_pool(1 << 50)


def test_rows_of_conversations_in_turn_then_rows_that_fill() -> None:
    tree = BatchPart([7, 8, 9], [0, 1, 1], PAGE_ROWS - 1, [4, 2], [-1, 0, 0])
    chain = BatchPart([5, 6], [0, 1], 3, [9])
    batch = lay_out([tree, chain], 8)
    assert batch.rows == 8
    assert batch.tokens.tolist() == [7, 8, 9, 5, 6, 0, 0, 0]
    assert batch.positions.tolist() == [63, 64, 64, 3, 4, 0, 0, 0]
    assert batch.slots.tolist() == [4 * 64 + 63, 2 * 64, 2 * 64 + 1, 9 * 64 + 3, 9 * 64 + 4, 0, 0, 0]
    assert list(batch.parts) == [tree, chain, FILLER, FILLER, FILLER]


def test_a_row_sees_its_ancestors_and_itself() -> None:
    assert BatchPart([1, 1, 1], [0, 1, 2], 5, [1]).seen().tolist() == np.tri(3, dtype=bool).tolist()
    tree = BatchPart([1, 1, 1, 1], [0, 0, 1, 2], 5, [1], [-1, -1, 0, 2])
    assert tree.seen().tolist() == [
        [True, False, False, False],
        [False, True, False, False],
        [True, False, True, False],
        [True, False, True, True],
    ]


def test_a_function_over_tensors_runs_in_its_own_dtype_and_without_gradients() -> None:
    seen: list[torch.Tensor] = []

    def double(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows)
        return 2 * rows

    run = over_arrays(double, torch.bfloat16, CPU)
    out = run(np.array([[1.0, 1.001]], np.float32))
    assert out.dtype == np.float32
    assert out.tolist() == [[2.0, 2.0]]
    assert seen[0].dtype == torch.bfloat16
    assert seen[0].is_inference()
