from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_kernels import Heads, KernelError, Segment
from moa_kernels.transformer.reference import ReferenceCache

from tests.support.messages import raises

any_parents = st.integers(1, 12).flatmap(lambda count: st.tuples(*(st.integers(-1, node - 1) for node in range(count))))


def cache_of(length: int) -> ReferenceCache:
    cache = ReferenceCache([Heads(1, 32)], kv="f32")
    cache.reserve(length)
    cache.length = length
    return cache


def seen_by(segment: Segment, row: int) -> list[int]:
    return [*range(segment.seen[row]), *segment.tail[segment.tail_start[row] : segment.tail_start[row + 1]].tolist()]


@given(any_parents, st.integers(0, 9), st.data())
def test_a_node_sees_what_was_before_its_ancestors_and_itself(
    parents: tuple[int, ...], before: int, data: st.DataObject
) -> None:
    known = data.draw(st.integers(0, len(parents) - 1))
    segment = Segment.tree(cache_of(before + known), parents, known)
    segment.check(writes=True)
    assert segment.rows == len(parents) - known
    assert segment.first_slot == before + known
    for row, node in enumerate(range(known, len(parents))):
        path = []
        while node >= 0:
            path.append(before + node)
            node = parents[node]
        assert seen_by(segment, row) == [*range(before), *path[::-1]]
        assert segment.positions[row] == before + len(path) - 1


@given(st.integers(0, 9), st.integers(1, 9), st.none() | st.integers(0, 50))
def test_a_chain_is_the_tree_of_a_chain(before: int, rows: int, position: int | None) -> None:
    cache = cache_of(before)
    chain = Segment.chain(cache, rows, position)
    tree = Segment.tree(cache, range(-1, rows - 1), position=position)
    chain.check(writes=True)
    for ours, theirs in zip(chain._arrays, tree._arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_trunk_needs_no_tail() -> None:
    """A chain with a branch at its end is read as one run of slots, which is quick."""
    segment = Segment.tree(cache_of(10), [-1, 0, 1, 1, 3])
    assert segment.seen.tolist() == [11, 12, 13, 12, 12]
    assert [segment.tail.tolist(), segment.tail_start.tolist()] == [[13, 13, 14], [0, 0, 0, 0, 1, 3]]


def test_memory_is_seen_whole_and_not_written() -> None:
    segment = Segment.memory(cache_of(5), np.array([9, 3], np.int32))
    segment.check(writes=False)
    assert [seen_by(segment, row) for row in (0, 1)] == [[0, 1, 2, 3, 4]] * 2
    with raises(KernelError, snapshot("1 rows of a forward see slots that their cache of 0 rows does not hold.")):
        Segment.memory(cache_of(0), np.array([0], np.int32)).check(writes=False)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


WRONG: dict[str, dict[str, Any]] = {
    "a slot beyond the rows": {"seen": ints(6, 9, 6)},
    "nothing": {"seen": ints(6, 0, 6), "tail": ints(6), "tail_start": ints(0, 0, 0, 1)},
    "a negative number of slots": {"seen": ints(-1, 7, 6)},
    "a tail beyond the rows": {"tail": ints(6, 9)},
    "a tail below what is seen": {"tail": ints(4, 7)},
    "a tail in another order": {"tail": ints(7, 6)},
    "a tail twice the same": {"tail": ints(7, 7)},
    "tails that do not begin at the begin": {"tail_start": ints(1, 1, 1, 2)},
    "tails that end too early": {"tail_start": ints(0, 0, 0, 1)},
    "tails that go back": {"tail_start": ints(0, 2, 1, 2)},
    "fewer tails than rows": {"tail_start": ints(0, 0, 2)},
    "fewer rows seen": {"seen": ints(6, 6)},
    "a negative position": {"positions": ints(5, -1, 6)},
    "a first slot beyond the cache": {"first_slot": 6},
    "a negative first slot": {"first_slot": -1},
    "wider numbers": {"seen": np.array([6, 6, 6], np.int64)},
    "numbers with gaps": {"seen": ints(6, 9, 6, 9, 6)[::2]},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_c_must_not_read_is_refused(name: str) -> None:
    right = Segment(cache_of(5), 5, ints(5, 5, 6), ints(6, 6, 6), ints(0, 0, 0, 2), ints(6, 7))
    right.check(writes=True)
    with pytest.raises(KernelError, match="slots that their cache"):
        replace(right, **WRONG[name]).check(writes=True)
