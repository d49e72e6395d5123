from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from moa_server.target import KVCache
from moa_shared.errors import InternalError, TreeError

LAYERS, KV_HEADS, HEAD_DIM = 2, 3, 4


def new_cache(capacity: int = 2) -> KVCache:
    return KVCache(LAYERS, KV_HEADS, HEAD_DIM, dtype=torch.float32, capacity=capacity)


def key_of(row: int, layer: int) -> torch.Tensor:
    """[kv_heads, head_dim], different for every row, layer, head and dimension."""
    return (1000.0 * row + 100.0 * layer) + torch.arange(KV_HEADS * HEAD_DIM).view(KV_HEADS, HEAD_DIM)


def write(cache: KVCache, rows: list[int], depths: list[int]) -> None:
    cache.begin(len(rows))
    for layer in range(LAYERS):
        keys = torch.stack([key_of(row, layer) for row in rows], dim=1)[None]  # [1, kv_heads, rows, head_dim]
        held_keys, held_values = cache.update(keys, -keys, layer)
        assert held_keys.shape == (1, KV_HEADS, cache.length + len(rows), HEAD_DIM)
        assert torch.equal(held_values, -held_keys)
    cache.end(depths)


def expected_input(rows: list[int]) -> torch.Tensor:
    """[rows, layers, 2 * kv_heads * head_dim] in the order K0 V0 K1 V1 ..., written out by hand."""
    out = torch.empty(len(rows), LAYERS, 2 * KV_HEADS * HEAD_DIM)
    for place, row in enumerate(rows):
        for layer in range(LAYERS):
            key = key_of(row, layer)
            out[place, layer] = torch.cat([part for head in range(KV_HEADS) for part in (key[head], -key[head])])
    return out


class CacheMachine(RuleBasedStateMachine):
    """The cache against a plain list of the rows that it should hold."""

    @initialize(capacity=st.integers(1, 6))
    def start(self, capacity: int) -> None:
        self.cache = new_cache(capacity)
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
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        rows = self.fresh(count)
        write(self.cache, rows, depths)
        path: list[int] = []
        node = data.draw(st.integers(-1, count - 1))
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
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
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


@given(st.integers(0, 9), st.integers(0, 9))
def test_lsa_input_of_a_part(start: int, stop: int) -> None:
    cache = new_cache()
    write(cache, list(range(8)), list(range(8)))
    if start <= stop <= 8:
        np.testing.assert_array_equal(cache.lsa_input(start, stop), expected_input(list(range(start, stop))))
    else:
        with pytest.raises(InternalError, match="were asked of a cache of 8 rows"):
            cache.lsa_input(start, stop)


def test_keeping_a_path_moves_neither_the_prefix_nor_the_buffer() -> None:
    cache = new_cache(capacity=16)
    write(cache, [0, 1, 2], [0, 1, 2])
    where = cache.update(torch.zeros(1, KV_HEADS, 0, HEAD_DIM), torch.zeros(1, KV_HEADS, 0, HEAD_DIM), 0)[0].data_ptr()
    write(cache, [3, 4, 5, 6], [0, 1, 1, 2])
    cache.keep([0, 2, 3])
    np.testing.assert_array_equal(cache.lsa_input(0, 6), expected_input([0, 1, 2, 3, 5, 6]))
    nothing = torch.zeros(1, KV_HEADS, 0, HEAD_DIM)
    assert cache.update(nothing, nothing, 0)[0].data_ptr() == where


@pytest.mark.parametrize("path", [[1], [0, 0], [0, 3], [0, 2, 1], [4], [-1]])
def test_what_is_no_path_is_refused(path: list[int]) -> None:
    cache = new_cache()
    write(cache, [0, 1, 2, 3], [0, 1, 1, 2])
    with pytest.raises(TreeError, match="are no path"):
        cache.keep(path)
    assert cache.length == 4


def test_a_tree_must_be_cut_before_the_next_forward() -> None:
    cache = new_cache()
    write(cache, [0, 1, 2], [0, 1, 1])
    with pytest.raises(InternalError, match="not cut to a path"):
        cache.begin(1)
    with pytest.raises(InternalError, match="must be cut"):
        cache.crop(2)
    cache.crop(0)
    cache.begin(1)


def test_the_tail_is_gone_after_keep() -> None:
    cache = new_cache()
    write(cache, [0, 1], [0, 1])
    cache.keep([0])
    with pytest.raises(TreeError, match="are no path"):
        cache.keep([0])
    assert cache.length == 1


def test_counting_other_rows_than_were_written_is_a_defect() -> None:
    cache = new_cache()
    cache.begin(2)
    with pytest.raises(InternalError, match="2 rows were written, 1 are"):
        cache.end([0])


def test_rows_of_a_forward_that_failed_are_written_over() -> None:
    cache = new_cache()
    write(cache, [0], [0])
    cache.begin(3)  # a forward that died before `end`
    write(cache, [1, 2], [0, 1])
    np.testing.assert_array_equal(cache.lsa_input(0, 3), expected_input([0, 1, 2]))


def test_a_long_buffer_grows_by_steps() -> None:
    cache = new_cache(capacity=3000)
    row_bytes = cache.nbytes // 3000
    cache.reserve(3001)
    assert cache.nbytes == (3000 + 1024) * row_bytes
    cache.reserve(9000)
    assert cache.nbytes == 9000 * row_bytes


def test_the_buffer_grows_by_doubling() -> None:
    cache = new_cache(capacity=4)
    row_bytes = LAYERS * KV_HEADS * 2 * HEAD_DIM * 4
    assert cache.nbytes == 4 * row_bytes
    write(cache, list(range(5)), list(range(5)))
    assert cache.nbytes == 8 * row_bytes
    write(cache, list(range(20)), list(range(20)))
    assert cache.nbytes == 25 * row_bytes
