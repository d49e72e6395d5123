from __future__ import annotations

import pytest
import torch
from moa_server.verifier.paged.pool import PAGE_ROWS, PagedCache, PagePool
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


def test_a_dropped_conversation_gives_its_pages_back() -> None:
    pool = make_pool(2)
    cache = PagedCache(pool)
    cache.reserve(2 * PAGE_ROWS)
    del cache
    PagedCache(pool).reserve(2 * PAGE_ROWS)


def test_a_pool_has_a_page_to_give_out_however_few_bytes_are_asked_for() -> None:
    PagedCache(PagePool(LAYERS, KV_HEADS, HEAD_DIM, 1, torch.float32, CPU)).reserve(1)


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="There is no room for"):
        make_pool(1 << 50)
