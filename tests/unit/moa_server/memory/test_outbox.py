from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_server.memory.feed import MemoryOutbox

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
