"""The kernels' cache against the one in numpy, and which of its rows a segment sees."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from moa_kernels import KV_FORMATS, PAGE_ROWS, Cache, Heads, KernelError, Page, Segment, variant_name
from moa_kernels.transformer.reference import ReferenceCache

from tests.support.skipping import examples

HEAD_DIM = 32
HEADS = (Heads(2, HEAD_DIM), Heads(1, 96))  # which differ, as Gemma 4's do

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")


def both(kv: str = "f16") -> tuple[Cache, ReferenceCache]:
    return Cache(HEADS, kv=kv), ReferenceCache(HEADS, kv=kv)


def write(caches: tuple[Cache, ...], rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for layer, heads in enumerate(HEADS):
        keys, values = random.normal(size=(2, rows, *heads)).astype(np.float32)
        for cache in caches:
            cache.write(layer, keys, values)
    for cache in caches:
        cache.length += rows


class SharingMachine(RuleBasedStateMachine):
    """Three caches that take over one another's full pages, against three in numpy; and pages that nobody may change."""

    @initialize(kv=st.sampled_from(KV_FORMATS))
    def start(self, kv: str) -> None:
        self.caches = [both(kv) for _ in range(3)]
        self.page_nbytes = self.caches[0][0].most_nbytes(1)
        self.kept: list[tuple[Page, bytes]] = []
        self.seed = 0

    @rule(which=st.integers(0, 2), rows=st.integers(0, 150))
    def write(self, which: int, rows: int) -> None:
        self.seed += 1
        write(self.caches[which], rows, self.seed)

    @rule(which=st.integers(0, 2), data=st.data())
    def crop(self, which: int, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, self.caches[which][1].length + 3))
        for cache in self.caches[which]:
            cache.crop(length)

    @rule(which=st.integers(0, 2), data=st.data())
    def keep(self, which: int, data: st.DataObject) -> None:
        length = self.caches[which][1].length
        start = data.draw(st.integers(0, length))
        rows = sorted(data.draw(st.sets(st.integers(0, length - start - 1), max_size=20))) if length > start else []
        for cache in self.caches[which]:
            cache.keep_behind(start, rows)

    @rule(which=st.integers(0, 2), data=st.data(), by=st.integers(0, 70))
    def move(self, which: int, data: st.DataObject, by: int) -> None:
        before = self.caches[which][1].length
        rows = data.draw(st.integers(0, min(before, 100)))
        fills = data.draw(st.booleans())
        for cache in self.caches[which]:
            cache.move_last(rows, by)
            assert cache.length == before + by
            if not fills:  # what is in a gap is nobody's affair: taken out, or filled
                cache.keep_behind(before - rows, range(by, by + rows))
                continue
            cache.length = before - rows
            for layer, heads in enumerate(HEADS):
                gap = np.zeros((by, *heads), np.float32)
                cache.write(layer, gap, gap)
            cache.length = before + by

    @rule(taker=st.integers(0, 2), lender=st.integers(0, 2), data=st.data())
    def adopt(self, taker: int, lender: int, data: st.DataObject) -> None:
        (ours, theirs), (lent, plain) = self.caches[taker], self.caches[lender]
        pages = data.draw(st.integers(0, lent.length // PAGE_ROWS))
        rows = [own[: pages * PAGE_ROWS].copy() for own in plain.rows]
        ours.adopt([lent.full_page(number) for number in range(pages)])
        theirs.release()
        theirs.reserve(len(rows[0]))
        for own, taken in zip(theirs.rows, rows, strict=True):
            own[: len(taken)] = taken
        theirs.length = ours.length
        assert ours.nbytes == pages * self.page_nbytes

    @rule(which=st.integers(0, 2), data=st.data())
    def lend(self, which: int, data: st.DataObject) -> None:
        cache = self.caches[which][0]
        if cache.length >= PAGE_ROWS:
            page = cache.full_page(data.draw(st.integers(0, cache.length // PAGE_ROWS - 1)))
            self.kept.append((page.hold(), page.data.tobytes()))

    @rule(which=st.integers(0, 2), data=st.data())
    def exchange(self, which: int, data: st.DataObject) -> None:
        """A page for a copy of it that others hold."""
        cache = self.caches[which][0]
        if cache.length >= PAGE_ROWS:
            number = data.draw(st.integers(0, cache.length // PAGE_ROWS - 1))
            copied = Page(self.page_nbytes)
            copied.data[:] = cache.full_page(number).data
            cache.replace_page(number, copied)
            self.kept.append((copied, copied.data.tobytes()))

    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        for cache in self.caches[which]:
            cache.release()

    @rule()
    def drop(self) -> None:
        if self.kept:
            self.kept.pop()[0].let_go()

    @invariant()
    def each_holds_its_own_rows(self) -> None:
        for ours, theirs in self.caches:
            assert ours.length == theirs.length
            np.testing.assert_array_equal(ours.read(0, ours.length), theirs.read(0, theirs.length))

    @invariant()
    def kept_pages_never_change(self) -> None:
        assert all(page.data.tobytes() == before for page, before in self.kept)

    @invariant()
    def holders_are_counted(self) -> None:
        held = [page for ours, _ in self.caches for page in ours._pages] + [page for page, _ in self.kept]
        assert all(page.holders == sum(other is page for other in held) for page in held)


TestSharingMachine = SharingMachine.TestCase
TestSharingMachine.settings = settings(max_examples=examples(80), stateful_step_count=15)


def test_no_memory_leaves_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    (lender, _), (taker, reference) = both(), both()
    write((lender, reference), 70, 1)
    taker.adopt([lender.full_page(0)])

    for length in (40, 64):  # a page is to be copied, and another one to be had
        with monkeypatch.context() as patch:
            patch.setattr("moa_kernels.transformer.pages.aligned_zeros", Mock(side_effect=MemoryError))
            taker.crop(length)
            with pytest.raises(MemoryError):
                write((taker,), 1, 2)
        assert taker.length == length
        np.testing.assert_array_equal(taker.read(0, length), lender.read(0, length))
        assert lender.full_page(0).holders == 2
        taker.adopt([lender.full_page(0)])
    for number in (-1, 1):
        with pytest.raises(KernelError, match=f"Page {number} of a cache of 70 rows is not full"):
            lender.full_page(number)


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_part_is_read_and_a_narrower_layer_has_zeros_behind_its_numbers(kv: str) -> None:
    ours, theirs = both(kv)
    write((ours, theirs), 200, 1)
    for start, stop in ((0, 0), (60, 70), (63, 64), (64, 65), (127, 200)):
        got = ours.read(start, stop)
        np.testing.assert_array_equal(got, theirs.read(start, stop))
        assert got.shape == (stop - start, 2, 192)
        assert not got[:, 0, 128:].any()


def test_half_precision_is_rounded_once_to_the_nearest() -> None:
    cache = Cache([Heads(1, HEAD_DIM)], kv="f16")
    numbers = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65504, 1e-8, -1e-7, 0.1] + [0] * 26, np.float32)
    rows = numbers.reshape(1, 1, HEAD_DIM)
    cache.write(0, rows, -rows)
    cache.length = 1
    expected = numbers.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(cache.read(0, 1)[0, 0], [*expected, *-expected])


def test_eight_bits_are_rounded_once_with_a_scale_of_each_row_and_head() -> None:
    cache = Cache([Heads(2, HEAD_DIM)], kv="q8")
    keys = np.random.default_rng(1).normal(size=(3, 2, HEAD_DIM)).astype(np.float32)
    keys[1, 0] *= 1000
    keys[2, 1] = 0
    cache.write(0, keys, -2 * keys)
    cache.length = 3
    scales = np.maximum(np.abs(keys).max(axis=-1, keepdims=True), np.float32(1e-12)) / np.float32(127)
    got = cache.read(0, 3).reshape(3, 2, 2, HEAD_DIM)
    assert np.all(np.abs(got[:, :, 0] - keys) <= 0.5001 * scales)
    np.testing.assert_array_equal(got[:, :, 1], -2 * got[:, :, 0])
    np.testing.assert_allclose(got[:, :, 0] / scales, np.rint(got[:, :, 0] / scales), atol=1e-4)


def test_eight_bits_take_half_the_bytes() -> None:
    sizes = {kv: Cache([Heads(2, 128)] * 3, kv=kv).most_nbytes(64) for kv in KV_FORMATS}
    assert sizes["q8"] == sizes["f16"] * (128 + 4) / 256
    with pytest.raises(KernelError, match="cannot be kept as 'q4'"):
        Cache([Heads(1, 32)], kv="q4")
    assert ReferenceCache([Heads(1, 48)], kv="f16").width == 96


def test_growing_moves_nothing_and_takes_pages() -> None:
    cache = Cache(HEADS, kv="f16")
    page = sum(heads.width for heads in HEADS) * PAGE_ROWS * 2
    assert cache.nbytes == 0
    cache.reserve(1)
    assert cache.nbytes == page
    first = int(cache._table[0])
    cache.reserve(64 * 40)
    assert cache.nbytes == 40 * page
    assert int(cache._table[0]) == first
    assert not any(int(address) % 64 for address in cache._table[:40])
    cache.crop(0)
    assert cache.nbytes == 40 * page


def test_what_is_not_held_is_refused() -> None:
    for cache in both("f32"):
        write((cache,), 5, 1)
        keys = np.zeros((2, *HEADS[0]), np.float32)
        rows: list[Any] = [(2, [3]), (2, [-1]), (0, [1, 0]), (0, [1, 1]), (6, []), (-1, [0])]
        fit = r"do not fit a cache whose rows are \(2, 32\)"
        for method, calls, words in (
            (cache.read, [(-1, 2), (3, 2), (0, 6)], "were requested from a cache of 5 rows"),
            (cache.keep_behind, rows, "cannot be kept"),
            (cache.move_last, [(6, 1), (-1, 1), (2, -1)], "cannot be moved"),
            (cache.crop, [(-1,)], "A cache of 5 rows cannot be cropped to -1"),
            (cache.write, [(0, keys, keys[:1]), (0, keys[:, :1], keys[:, :1])], fit),
            (cache.write, [(2, keys, keys)], "Keys of layer 2 were written into a cache of 2 layers"),
        ):
            for arguments in calls:
                with pytest.raises(KernelError, match=words):
                    method(*arguments)
        assert cache.length == 5


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
    for name in ("positions", "seen", "tail_start", "tail"):
        np.testing.assert_array_equal(getattr(chain, name), getattr(tree, name))


def test_a_trunk_needs_no_tail() -> None:
    """A chain with a branch at its end is read as one run of slots, which is quick."""
    segment = Segment.tree(cache_of(10), [-1, 0, 1, 1, 3])
    assert segment.seen.tolist() == [11, 12, 13, 12, 12]
    assert [segment.tail.tolist(), segment.tail_start.tolist()] == [[13, 13, 14], [0, 0, 0, 0, 1, 3]]


def test_memory_is_seen_whole_and_not_written() -> None:
    segment = Segment.memory(cache_of(5), np.array([9, 3], np.int32))
    segment.check(writes=False)
    assert [seen_by(segment, row) for row in (0, 1)] == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(KernelError, match="1 rows of a forward see slots that their cache of 0 rows does not hold"):
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
