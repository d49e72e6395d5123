import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from moa_kernels import Page
from moa_server.memory.feed import RowStore, most_nbytes
from moa_shared.bfloat16 import round_to_bfloat16, widen_bfloat16
from moa_shared.errors import InternalError

from tests.support.skipping import examples


def numbered(start: int, count: int, mark: int = 0) -> npt.NDArray[np.float32]:
    return np.arange(start, start + count, dtype=np.float32)[:, None] * np.ones((1, 2), np.float32) + 100 * mark


def test_rows_come_back() -> None:
    store = RowStore(2)
    store.write(0, numbered(0, 3))
    store.write(3, numbered(3, 2))
    np.testing.assert_array_equal(store.read(1, 5), numbered(1, 4))
    assert store.first_missing(0, 5) == 5


def test_rows_are_held_as_the_wire_has_them() -> None:
    store = RowStore(2)
    row = np.array([[1.001, -3e-5]], np.float32)
    store.write(0, row)
    np.testing.assert_array_equal(store.read(0, 1), widen_bfloat16(round_to_bfloat16(row)))
    assert store.nbytes == most_nbytes(2, 1) == 64 * 2 * 2


def test_rows_come_in_any_order() -> None:
    store = RowStore(2)
    store.write(4, numbered(4, 2))
    assert store.first_missing(0, 6) == 0
    assert store.first_missing(4, 6) == 6
    assert store.first_missing(4, 9) == 6
    assert store.first_missing(8, 9) == 8
    store.write(0, numbered(0, 3))
    assert store.first_missing(0, 6) == 3
    store.write(3, numbered(3, 1))
    np.testing.assert_array_equal(store.read(0, 6), numbered(0, 6))


def test_rows_that_are_not_held() -> None:
    store = RowStore(2)
    store.write(0, numbered(0, 4))
    store.crop(2)
    store.crop(3)
    for start, stop in ((0, 3), (-1, 1), (2, 1)):
        with pytest.raises(InternalError):
            store.read(start, stop)
    assert store.read(2, 2).shape == (0, 2)


@given(writes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300), st.booleans()), max_size=12))
def test_it_is_a_mapping_from_position_to_row(writes: list[tuple[int, int, bool]]) -> None:
    store = RowStore(1)
    model: dict[int, int] = {}
    for mark, (start, count, crop) in enumerate(writes):
        if crop:
            store.crop(start)
            model = {position: row for position, row in model.items() if position < start}
        else:
            store.write(start, np.full((count, 1), mark, np.float32))
            model |= dict.fromkeys(range(start, start + count), mark)
        for position in range(0, 800, 7):
            assert (store.first_missing(position, position + 1) > position) == (position in model)
            if position in model:
                assert store.read(position, position + 1).item() == model[position]
    assert store.nbytes >= 2 * len(model)


class SharingMachine(RuleBasedStateMachine):
    """Two stores that take over one another's full pages, against plain lists of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = [RowStore(1), RowStore(1)]
        self.rows: list[list[int]] = [[], []]
        self.kept: list[tuple[Page, bytes]] = []
        self.marks = itertools.count(1)

    @rule(which=st.integers(0, 1), data=st.data(), rows=st.integers(1, 150))
    def write(self, which: int, data: st.DataObject, rows: int) -> None:
        start, mark = data.draw(st.integers(0, len(self.rows[which]))), next(self.marks)
        self.stores[which].write(start, np.full((rows, 1), mark, np.float32))
        self.rows[which][start : start + rows] = [mark] * rows

    @rule(which=st.integers(0, 1), length=st.integers(0, 300))
    def crop(self, which: int, length: int) -> None:
        self.stores[which].crop(length)
        del self.rows[which][length:]

    @rule(taker=st.integers(0, 1), data=st.data())
    def adopt(self, taker: int, data: st.DataObject) -> None:
        lender = 1 - taker
        pages = data.draw(st.integers(0, len(self.rows[lender]) // 64))
        self.stores[taker].adopt([self.stores[lender].full_page(number) for number in range(pages)])
        self.rows[taker] = self.rows[lender][: 64 * pages]

    @rule(which=st.integers(0, 1), data=st.data())
    def lend(self, which: int, data: st.DataObject) -> None:
        full = len(self.rows[which]) // 64
        if full:
            page = self.stores[which].full_page(data.draw(st.integers(0, full - 1)))
            self.kept.append((page.hold(), page.data.tobytes()))

    @rule()
    def drop(self) -> None:
        if self.kept:
            self.kept.pop()[0].let_go()

    @invariant()
    def each_holds_its_own_rows(self) -> None:
        for store, rows in zip(self.stores, self.rows, strict=True):
            assert store.read(0, len(rows))[:, 0].tolist() == rows
            assert store.first_missing(0, 1000) == len(rows)
            assert store.nbytes == most_nbytes(1, len(rows))

    @invariant()
    def kept_pages_never_change(self) -> None:
        assert all(page.data.tobytes() == before for page, before in self.kept)


TestSharingMachine = SharingMachine.TestCase
TestSharingMachine.settings = settings(max_examples=examples(60), stateful_step_count=15)


def test_only_full_pages_are_lent() -> None:
    store = RowStore(2)
    store.write(0, numbered(0, 63))
    store.write(70, numbered(0, 70))
    for number in (0, 1, 2, 5):
        with pytest.raises(InternalError, match=f"Page {number} of a store of rows is not full"):
            store.full_page(number)
    store.write(63, numbered(0, 1))
    assert store.full_page(0).holders == 1
