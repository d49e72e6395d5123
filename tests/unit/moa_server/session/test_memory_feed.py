"""What of a session's memory is kept, what is sent next, and how much of it."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from moa_kernels import Page
from moa_server.session.memory_feed import (
    GAIN,
    LOAN_STEPS,
    Chunk,
    MemoryBudget,
    MemoryFeed,
    RowStore,
    most_nbytes,
)
from moa_server.settings import MEMORY_SHARE
from moa_shared.errors import InternalError
from moa_shared.protocol.memory_codec import Codec, round_to_bfloat16, row_bytes, widen_bfloat16
from moa_shared.protocol.messages import NO_ROWS, Plane

from tests.support.skipping import examples

WIDTHS = {Plane.MEMORY: 32, Plane.REUSED_STATE: 64}
ROW = row_bytes(Codec.BF16, 32)  # 64
STATE_ROW = row_bytes(Codec.BF16, 64)


def make_feed(credit: int = 1 << 20) -> MemoryFeed:
    return MemoryFeed(WIDTHS, Codec.BF16, credit)


def make_memory_feed(credit: int = 1 << 20) -> MemoryFeed:
    return MemoryFeed({Plane.MEMORY: 32}, Codec.BF16, credit)


def test_without_time_to_encode_states_are_sent_without_memory() -> None:
    feed = make_feed()
    feed.rows_ready(3)
    assert feed.take(encodes=False) == Chunk(Plane.REUSED_STATE, 0, 3, Codec.BF16, 3 * STATE_ROW)
    assert feed.take(encodes=False) is None
    assert feed.take() == Chunk(Plane.MEMORY, 0, 3, Codec.BF16, 3 * ROW)


def test_all_states_of_a_prompt_are_owed() -> None:
    feed = make_feed(credit=2 * STATE_ROW)
    assert feed.owes(3)
    feed.rows_ready(3)
    assert feed.take() == Chunk(Plane.REUSED_STATE, 1, 2, Codec.BF16, 2 * STATE_ROW)
    assert feed.owes(3)
    feed.on_credit(2 * STATE_ROW)
    assert feed.take() == Chunk(Plane.REUSED_STATE, 0, 1, Codec.BF16, STATE_ROW)
    feed.rows_ready(4)
    assert not feed.owes(3)


def test_of_states_the_newest_is_owed_and_of_memory_rows_what_a_window_sees_is_whole() -> None:
    feed = MemoryFeed(WIDTHS, Codec.BF16, 1 << 20, narrow=(3, 8))
    feed.rows_ready(9)
    assert feed.most_rows(Plane.REUSED_STATE) == 1
    assert feed.take() == Chunk(Plane.REUSED_STATE, 8, 1, Codec.BF16, STATE_ROW)
    assert feed.take() == Chunk(Plane.MEMORY, 6, 3, Codec.BF16, 3 * ROW)
    assert not feed.owes(9)
    assert feed.take() == Chunk(Plane.MEMORY, 2, 4, Codec.BF16, 4 * 16, width=8)
    assert feed.take() == Chunk(Plane.MEMORY, 0, 2, Codec.BF16, 2 * 16, width=8)
    feed.rows_ready(10)
    assert [chunk.start for chunk in iter(feed.take, None)] == [9, 9]
    feed.crop(7)
    assert feed.take() == Chunk(Plane.REUSED_STATE, 6, 1, Codec.BF16, STATE_ROW)
    assert feed.take() == Chunk(Plane.MEMORY, 4, 2, Codec.BF16, 2 * ROW)
    assert feed.take() is None


@given(
    credit=st.integers(1, 2000),
    events=st.lists(st.tuples(st.sampled_from(["ready", "take", "credit", "crop"]), st.integers(0, 60)), max_size=60),
)
def test_every_row_is_sent_once_and_never_beyond_the_credit(credit: int, events: list[tuple[str, int]]) -> None:
    feed = make_feed(credit)
    waiting: dict[Plane, set[int]] = {plane: set() for plane in Plane}
    ready = 0
    for event, number in events:
        if event == "ready":
            for rows in waiting.values():
                rows |= set(range(ready, number))
            ready = max(ready, number)
            feed.rows_ready(number)
        elif event == "crop":
            waiting = {plane: {row for row in rows if row < number} for plane, rows in waiting.items()}
            ready = min(ready, number)
            feed.crop(number)
        elif event == "credit":
            feed.on_credit(20 * number)
        else:
            before = feed.in_flight_bytes
            chunk = feed.take()
            if chunk is None:
                assert before > 0 or not any(waiting.values())
                continue
            rows = set(range(chunk.start, chunk.start + chunk.count))
            assert rows <= waiting[chunk.plane]
            waiting[chunk.plane] -= rows
            assert feed.in_flight_bytes <= credit or (before == 0 and chunk.count == 1)
            if chunk.plane is Plane.MEMORY:
                assert not waiting[Plane.REUSED_STATE]


def test_a_chunk_that_is_coded_already_is_claimed_once() -> None:
    feed = make_memory_feed()
    feed.rows_ready(6)
    assert feed.unsent_before(Plane.MEMORY, 6) == 0
    chunk = Chunk(Plane.MEMORY, 3, 2, Codec.BF16, 2 * ROW)
    assert feed.claim(chunk)
    assert [feed.unsent_before(Plane.MEMORY, stop) for stop in (3, 5, 6, 7)] == [0, 5, 5, 7]
    assert feed.in_flight_bytes == 2 * ROW
    assert not feed.claim(chunk)
    assert feed.take() == Chunk(Plane.MEMORY, 5, 1, Codec.BF16, ROW)
    assert feed.take() == Chunk(Plane.MEMORY, 0, 3, Codec.BF16, 3 * ROW)


def test_what_cannot_be_sent_now_is_not_claimed() -> None:
    feed = make_memory_feed(credit=2 * ROW)
    feed.rows_ready(4)
    assert not feed.claim(Chunk(Plane.MEMORY, 3, 2, Codec.BF16, 2 * ROW))  # beyond what is ready
    assert not feed.claim(Chunk(Plane.MEMORY, 3, 1, Codec.INT8, ROW))  # the client wants another codec by now
    assert feed.claim(Chunk(Plane.MEMORY, 3, 1, Codec.BF16, ROW))
    assert not feed.claim(Chunk(Plane.MEMORY, 0, 2, Codec.BF16, 2 * ROW))  # beyond the credit
    assert feed.claim(Chunk(Plane.MEMORY, 2, 1, Codec.BF16, ROW))


def test_no_row_is_sent_before_they_are_wanted() -> None:
    feed = MemoryFeed({Plane.MEMORY: 8}, Codec.BF16, 1 << 20, thin=NO_ROWS, encoded=())
    feed.rows_ready(1 << 20)  # tokens
    assert feed.take() is None
    feed.thin = None
    newest = feed.take()
    assert newest is not None
    assert newest.start + newest.count == 1 << 20


PLAIN_MS = 40.0


@given(
    st.lists(st.tuples(st.floats(30, 80), st.integers(1, 3), st.floats(0.5, 12)), min_size=1, max_size=200),
    st.sampled_from([0.0, MEMORY_SHARE, 0.5]),
)
def test_memory_never_takes_more_than_its_share_the_loan_and_a_part_of_what_was_saved(
    steps: list[tuple[float, int, float]], share: float
) -> None:
    budget = MemoryBudget(share)
    stepped = saved = spent = 0.0
    dearest = 0.0
    for step_ms, tokens, encode_ms in steps:
        budget.on_step(step_ms, tokens, PLAIN_MS)
        stepped += step_ms
        saved += max(0.0, tokens * PLAIN_MS - step_ms)
        if budget.allows_newest:
            budget.on_encoded(encode_ms)
            spent += encode_ms
            dearest = max(dearest, encode_ms)
        assert spent <= share * stepped + GAIN * saved + LOAN_STEPS * PLAIN_MS + dearest + 1e-6


def numbered(start: int, count: int, mark: int = 0) -> npt.NDArray[np.float32]:
    return np.arange(start, start + count, dtype=np.float32)[:, None] * np.ones((1, 2), np.float32) + 100 * mark


def test_rows_are_held_as_the_wire_has_them() -> None:
    store = RowStore(2)
    row = np.array([[1.001, -3e-5]], np.float32)
    store.write(0, row)
    np.testing.assert_array_equal(store.read(0, 1), widen_bfloat16(round_to_bfloat16(row)))
    assert store.nbytes == most_nbytes(2, 1) == 64 * 2 * 2


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
