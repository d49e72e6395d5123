"""Which rows have arrived, whatever their order; and what a server may not send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.memory import MemoryReceiver, RowsHeld
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Memory, Plane
from moa_shared.protocol.prefix_hash import SHORT_HASH, PrefixHashes

HASHES = PrefixHashes(range(10))
WIDTHS = {Plane.MEMORY: 32, Plane.REUSED_STATE: 64}


class Drafter:
    """Writes down what it is handed: position, rows, width, plane of states or not."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, bool]] = []

    def remember(self, start: int, payload: bytes, codec: Codec, count: int, width: int, *, state: bool) -> None:
        assert (payload, codec) == (b"rows", Codec.INT8)
        self.rows.append((start, count, width, state))


def memory(start: int, count: int, plane: Plane = Plane.MEMORY, *, codec: Codec = Codec.INT8, stop: int = -1) -> Memory:
    """A frame for the tokens of HASHES; `stop`: it names the tokens before this position instead."""
    known = min(start + count, len(HASHES)) if stop < 0 else stop
    return Memory(start, count, codec, b"rows", plane, HASHES.at(known) & SHORT_HASH)


def receiver(drafter: Drafter) -> MemoryReceiver:
    return MemoryReceiver(drafter, WIDTHS, [Codec.INT8, Codec.INT4])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 20), st.integers(1, 6)),
            st.tuples(st.just("crop"), st.integers(0, 25), st.just(0)),
        ),
        max_size=30,
    )
)
def test_rows_are_held_as_a_set_of_positions_would_hold_them(actions: list[tuple[str, int, int]]) -> None:
    rows, held = RowsHeld(), set[int]()
    for action, start, count in actions:
        if action == "add":
            rows.add(start, start + count)
            held |= set(range(start, start + count))
        else:
            rows.crop(start)
            held = {position for position in held if position < start}
        assert rows.stop == max(held, default=-1) + 1
        assert rows.first_missing == next(position for position in range(40) if position not in held)


def test_rows_of_tokens_that_have_changed_since_are_ignored() -> None:
    drafter = Drafter()
    receives = receiver(drafter)
    receives.on_frame(memory(0, 3, stop=2), HASHES)
    assert drafter.rows == []
    assert (receives.newest, receives.gap) == (0, 0)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (memory(8, 3), "memory of positions before 10, got 8 to 10"),
        (memory(0, 1, codec=Codec.BF16), "memory in int8 or int4, got bf16"),
    ],
)
def test_what_was_not_asked_for_is_refused(frame: Memory, words: str) -> None:
    drafter = Drafter()
    with pytest.raises(ProtocolError, match=words):
        receiver(drafter).on_frame(frame, HASHES)
    assert drafter.rows == []


def test_a_plane_that_was_not_asked_for_is_refused() -> None:
    drafter = Drafter()
    receives = MemoryReceiver(drafter, {Plane.MEMORY: 32}, [Codec.INT8])
    with pytest.raises(ProtocolError, match="no memory that was not asked for"):
        receives.on_frame(memory(0, 1, Plane.REUSED_STATE), HASHES)
