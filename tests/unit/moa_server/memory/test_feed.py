"""What of a session's memory is sent next, and how much of it."""

from hypothesis import given
from hypothesis import strategies as st
from moa_server.memory.feed import GAIN, LOAN_STEPS, Chunk, MemoryBudget, MemoryFeed, MemoryOutbox
from moa_server.settings import MEMORY_SHARE
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import NO_ROWS, Plane

WIDTHS = {Plane.MEMORY: 32, Plane.REUSED_STATE: 64}
ROW = row_bytes(Codec.BF16, 32)  # 64
STATE_ROW = row_bytes(Codec.BF16, 64)


def make_feed(credit: int = 1 << 20, start: int = 0) -> MemoryFeed:
    return MemoryFeed(WIDTHS, Codec.BF16, credit, start)


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


def test_the_credit_bounds_what_is_in_flight() -> None:
    feed = make_memory_feed(credit=3 * ROW)
    feed.rows_ready(8)
    assert feed.take() == Chunk(Plane.MEMORY, 5, 3, Codec.BF16, 3 * ROW)
    assert feed.take() is None
    feed.on_credit(2 * ROW)
    assert feed.take() == Chunk(Plane.MEMORY, 3, 2, Codec.BF16, 2 * ROW)
    assert feed.take() is None
    feed.on_credit(1 << 30)  # more than was ever sent
    assert feed.in_flight_bytes == 0


def test_a_credit_below_one_row_lets_one_row_through() -> None:
    feed = make_memory_feed(credit=1)
    feed.rows_ready(2)
    assert feed.take() == Chunk(Plane.MEMORY, 1, 1, Codec.BF16, ROW)
    assert feed.take() is None
    feed.on_credit(ROW)
    assert feed.take() == Chunk(Plane.MEMORY, 0, 1, Codec.BF16, ROW)


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
    chunk = Chunk(Plane.MEMORY, 3, 2, Codec.BF16, 2 * ROW)
    assert feed.claim(chunk)
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


def test_rows_that_are_coded_already_may_be_more_than_may_be_sent_at_first() -> None:
    row = row_bytes(Codec.BF16, 512)
    feed = MemoryFeed({Plane.REUSED_STATE: 512}, Codec.BF16, 12 * row)
    feed.rows_ready(10)
    assert feed.has_room
    assert feed.take() is not None
    assert not feed.has_room
    feed.rows_ready(13)
    assert feed.claim(Chunk(Plane.REUSED_STATE, 10, 1, Codec.BF16, row))
    assert not feed.claim(Chunk(Plane.REUSED_STATE, 11, 2, Codec.BF16, 2 * row)), "more than the credit"
    feed.on_credit(11 * row)
    assert feed.has_room


def taken(feed: MemoryFeed) -> list[tuple[Plane, int, int]]:
    """What is sent now: plane, first position, number of rows."""
    chunks = []
    while (chunk := feed.take()) is not None:
        chunks.append((chunk.plane, chunk.start, chunk.count))
        feed.on_credit(chunk.nbytes)
    return chunks


def test_no_row_is_sent_before_they_are_wanted() -> None:
    feed = MemoryFeed({Plane.MEMORY: 8}, Codec.BF16, 1 << 20, thin=NO_ROWS, encoded=())
    feed.rows_ready(1 << 20)  # tokens
    assert taken(feed) == []
    feed.thin = None
    newest = feed.take()
    assert newest is not None
    assert newest.start + newest.count == 1 << 20


EVERYTHING = 1 << 30  # before which rows may go


def test_the_newest_rows_go_first() -> None:
    outbox = MemoryOutbox()
    outbox.rows_ready(10)
    assert outbox.take(4, EVERYTHING) == (6, 4)
    outbox.rows_ready(12)
    assert outbox.take(4, EVERYTHING) == (10, 2)
    assert outbox.take(4, EVERYTHING) == (2, 4)
    assert outbox.waiting == ((0, 2),)
    assert outbox.take(4, EVERYTHING) == (0, 2)
    assert outbox.take(4, EVERYTHING) is None


actions = st.lists(
    st.one_of(
        st.tuples(st.just("ready"), st.integers(0, 20)),
        st.tuples(st.just("take"), st.integers(0, 6)),
        st.tuples(st.just("crop"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(start=st.integers(0, 5), actions=actions)
def test_it_holds_what_is_ready_and_not_sent(start: int, actions: list[tuple[str, int]]) -> None:
    outbox = MemoryOutbox(start)
    ready, waiting = start, set[int]()
    for action, number in actions:
        if action == "ready":
            waiting |= set(range(ready, number))
            ready = max(ready, number)
            outbox.rows_ready(number)
        elif action == "crop":
            waiting = {position for position in waiting if position < number}
            ready = min(ready, number)
            outbox.crop(number)
        else:
            taken = outbox.take(number, EVERYTHING)
            if taken is None:
                assert not waiting or number < 1
                continue
            first, count = taken
            assert 1 <= count <= number
            assert first + count - 1 == max(waiting)
            assert set(range(first, first + count)) <= waiting
            waiting -= set(range(first, first + count))
        assert {position for a, b in outbox.waiting for position in range(a, b)} == waiting
        assert all(a < b for a, b in outbox.waiting)
        assert list(outbox.waiting) == sorted(outbox.waiting)


PLAIN_MS = 40.0


def test_drafts_that_are_right_pay_for_memory() -> None:
    budget = MemoryBudget()
    budget.on_step(PLAIN_MS, 1, PLAIN_MS)
    budget.on_encoded(0.16 * PLAIN_MS)
    assert not budget.allows_older
    budget.on_step(1.2 * PLAIN_MS, 4, PLAIN_MS)
    assert budget.allows_older


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


def test_the_codec_changes_for_what_is_sent_from_now_on() -> None:
    feed = make_memory_feed()
    feed.rows_ready(1)
    feed.codec = Codec.INT4
    chunk = feed.take()
    assert chunk is not None
    assert (chunk.codec, chunk.nbytes) == (Codec.INT4, row_bytes(Codec.INT4, 32))
