"""The caches of both backends against plain lists of rows; pages of the pool, and the rows of a batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from moa_kernels import Cache, Heads
from moa_server.verifier import KVCache
from moa_server.verifier.kernel_target import KernelCache
from moa_server.verifier.pool import FILLER, PAGE_ROWS, BatchPart, PagedCache, PagePool, lay_out, over_arrays, slots_of
from moa_server.verifier.target import Rows
from moa_shared.errors import ConfigError, InternalError, TreeError
from moa_shared.tree import add_depths, path_to

pytestmark = pytest.mark.torch

LAYERS, KV_HEADS, HEAD_DIM = 2, 3, 32
BACKENDS = ["torch", "kernels"]


def make_cache(backend: str, capacity: int = 2) -> KVCache:
    if backend == "torch":
        nbytes = 40 * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4 * PAGE_ROWS
        pool = PagePool(LAYERS, KV_HEADS, HEAD_DIM, nbytes, torch.float32, torch.device("cpu"))
        cache: KVCache = PagedCache(pool)
    else:
        cache = KernelCache(Cache([Heads(KV_HEADS, HEAD_DIM)] * LAYERS, kv="f32"))
    cache.reserve(capacity)
    return cache


@pytest.fixture(params=BACKENDS)
def cache(request: pytest.FixtureRequest) -> KVCache:
    return make_cache(request.param)


def keys_of(rows: list[int], layer: int) -> Rows:
    """[rows, kv_heads, head_dim], different for every row, layer, head and dimension."""
    place = np.arange(KV_HEADS * HEAD_DIM, dtype=np.float32).reshape(KV_HEADS, HEAD_DIM)
    return np.array(rows, np.float32)[:, None, None] * 1000 + 100 * layer + place


def write(cache: KVCache, rows: list[int], depths: list[int]) -> None:
    """As a forward writes: the values are the keys' opposites."""
    cache.begin(len(rows))
    for layer in range(LAYERS):
        keys = keys_of(rows, layer)
        if isinstance(cache, PagedCache):
            slots = torch.from_numpy(slots_of(cache.pages, range(cache.length, cache.length + len(rows))))
            cache.pool.write(layer, slots, torch.from_numpy(keys), torch.from_numpy(-keys))
        elif isinstance(cache, KernelCache):
            cache.pages.length = cache.length
            cache.pages.write(layer, keys, -keys)
    cache.end(depths)


def expected_input(rows: list[int]) -> Rows:
    """[rows, layers, 2 * kv_heads * head_dim] in the order K0 V0 K1 V1 ..., written out by hand."""
    out = np.empty((len(rows), LAYERS, 2 * KV_HEADS * HEAD_DIM), np.float32)
    for layer in range(LAYERS):
        for place, key in enumerate(keys_of(rows, layer)):
            out[place, layer] = np.concatenate([part for head in range(KV_HEADS) for part in (key[head], -key[head])])
    return out


class CacheMachine(RuleBasedStateMachine):
    """The cache against a plain list of the rows that it should hold."""

    @initialize(backend=st.sampled_from(BACKENDS), capacity=st.integers(1, 6))
    def start(self, backend: str, capacity: int) -> None:
        self.cache = make_cache(backend, capacity)
        self.rows: list[int] = []
        self.next_row = 0

    def fresh(self, count: int) -> list[int]:
        self.next_row += count
        return list(range(self.next_row - count, self.next_row))

    @rule(count=st.integers(1, 5))
    def append_chain(self, count: int) -> None:
        rows = self.fresh(count)
        write(self.cache, rows, list(range(count)))
        self.rows += rows

    @rule(data=st.data(), count=st.integers(1, 7))
    def append_tree_and_keep(self, data: st.DataObject, count: int) -> None:
        parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
        depths: list[int] = []
        add_depths(depths, parents)
        rows = self.fresh(count)
        write(self.cache, rows, [depth - 1 for depth in depths])
        path = path_to(parents, data.draw(st.integers(-1, count - 1)))
        before = self.cache.lsa_input(0, len(self.rows))
        self.cache.keep(path)
        np.testing.assert_array_equal(self.cache.lsa_input(0, len(self.rows)), before)
        self.rows += [rows[step] for step in path]

    @rule(data=st.data())
    def crop(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.rows)))
        self.cache.crop(length)
        del self.rows[length:]

    @invariant()
    def holds_these_rows(self) -> None:
        assert self.cache.length == len(self.rows)
        np.testing.assert_array_equal(self.cache.lsa_input(0, len(self.rows)), expected_input(self.rows))


TestCacheMachine = CacheMachine.TestCase


def test_lsa_input_of_a_part(cache: KVCache) -> None:
    write(cache, list(range(8)), list(range(8)))
    for start, stop in itertools.product(range(10), range(10)):
        if start <= stop <= 8:
            np.testing.assert_array_equal(cache.lsa_input(start, stop), expected_input(list(range(start, stop))))
        else:
            with pytest.raises(InternalError, match="were requested from a cache of 8 rows"):
                cache.lsa_input(start, stop)


@pytest.mark.parametrize("path", [[1], [0, 0], [0, 3], [0, 2, 1], [4], [-1]])
def test_what_is_no_path_is_refused(cache: KVCache, path: list[int]) -> None:
    write(cache, [0, 1, 2, 3], [0, 1, 1, 2])
    with pytest.raises(TreeError, match="are no path"):
        cache.keep(path)
    assert cache.length == 4
    cache.keep([0])
    with pytest.raises(TreeError, match="are no path"):  # the tail is gone
        cache.keep([0])


def test_a_tree_must_be_cut_before_the_next_forward(cache: KVCache) -> None:
    write(cache, [0, 1, 2], [0, 1, 1])
    with pytest.raises(InternalError, match="The rows of a draft tree were not cut to a path"):
        cache.begin(1)
    with pytest.raises(InternalError, match="A draft tree must be cut to a path, or dropped"):
        cache.crop(2)
    cache.crop(0)
    cache.begin(1)


def test_more_rows_than_a_page_holds_are_kept_and_moved_also_over_those_of_a_forward_that_failed(
    cache: KVCache,
) -> None:
    write(cache, [0], [0])
    cache.begin(3)  # a forward that died before `end`
    write(cache, list(range(1, 130)), list(range(129)))
    write(cache, list(range(130, 136)), [0, 1, 1, 2, 2, 3])
    cache.keep([0, 2, 4, 5])
    kept = [*range(130), 130, 132, 134, 135]
    np.testing.assert_array_equal(cache.lsa_input(0, 134), expected_input(kept))
    np.testing.assert_array_equal(cache.lsa_input(60, 131), expected_input(kept[60:131]))


LAYERS_POOL, KV_HEADS_POOL, HEAD_DIM_POOL = 2, 3, 4
ROW_BYTES = LAYERS_POOL * KV_HEADS_POOL * 2 * HEAD_DIM_POOL * 4
CPU = torch.device("cpu")


def make_pool(pages: int) -> PagePool:
    return PagePool(LAYERS_POOL, KV_HEADS_POOL, HEAD_DIM_POOL, pages * PAGE_ROWS * ROW_BYTES, torch.float32, CPU)


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
    PagedCache(PagePool(LAYERS_POOL, KV_HEADS_POOL, HEAD_DIM_POOL, 1, torch.float32, CPU)).reserve(1)
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
