"""How long drafting waits for rows, what is credited, and what is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.memory import PROMPT_HOLD_MS, MemoryPlan, RowsHeld
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import NO_ROWS, THIN, Memory, Plane, ThinMemory
from moa_shared.protocol.prefix_hash import SHORT_HASH, PrefixHashes

HASHES = PrefixHashes(range(10))


def plan(*planes: Plane, codec: Codec = Codec.INT8) -> MemoryPlan:
    return MemoryPlan(lambda *_: None, dict.fromkeys(planes or (Plane.MEMORY,), 32), codec)


def rows(start: int, stop: int, plane: Plane = Plane.MEMORY, nbytes: int = 10) -> Memory:
    return Memory(start, stop - start, Codec.INT8, bytes(nbytes), plane, HASHES.at(stop) & SHORT_HASH)


def test_few_rows_are_for_drafters_that_predict_the_others() -> None:
    assert plan(Plane.REUSED_STATE, Plane.MEMORY).fewest == THIN
    assert plan(Plane.MEMORY).fewest == NO_ROWS
    assert MemoryPlan(None, {Plane.REUSED_STATE: 32}, Codec.INT8).fewest is None


def test_a_server_resends_from_the_first_row_that_is_missing() -> None:
    memory = plan()
    memory.on_memory(0.0, rows(0, 2), HASHES)
    memory.on_memory(0.0, rows(4, 6), HASHES)
    assert memory.first_missing(10) == 2
    assert memory.first_missing(1) == 1  # of so many
    memory.crop(1)
    assert memory.first_missing(10) == 1
    memory.restart()
    assert memory.first_missing(10) == 0


def test_drafting_waits_for_the_prompt_when_all_rows_are_wanted_again() -> None:
    memory = plan(Plane.REUSED_STATE, Plane.MEMORY)
    memory.change(0.0, ThinMemory(4, 16))
    memory.begin_answer(0.0, 8)
    memory.on_memory(1.0, rows(0, 4, Plane.REUSED_STATE), HASHES)
    memory.change(100.0, None)
    assert memory.hold_until_ms == 100.0 + PROMPT_HOLD_MS
    memory.on_memory(110.0, rows(4, 8, Plane.REUSED_STATE), HASHES)
    assert memory.hold_until_ms == 0.0


def test_rows_cost_at_most_forty_bytes_a_token_of_an_answer_of_200() -> None:
    """In int4, of the default model: 324 bytes a state and 216 a memory row. Verdicts take 20 more."""
    sent = {THIN.owed(Plane.MEMORY, length) for length in range(50, 250)}
    states = THIN.owed(Plane.REUSED_STATE, 250)
    rows = sum(stop - start for start, stop in sent)
    assert 324 * (states[1] - states[0]) + 216 * rows <= 40 * 200


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


@pytest.mark.parametrize(
    ("start", "count", "plane", "codec", "words"),
    [
        (8, 3, Plane.MEMORY, Codec.INT8, "memory of positions before 10, got 8 to 10"),
        (0, 1, Plane.MEMORY, Codec.BF16, "memory in int8, got bf16"),
        (0, 1, Plane.REUSED_STATE, Codec.INT8, "no memory that was not asked for"),
    ],
)
def test_what_was_not_asked_for_is_refused(start: int, count: int, plane: Plane, codec: Codec, words: str) -> None:
    frame = Memory(start, count, codec, b"rows", plane, HASHES.at(min(start + count, len(HASHES))) & SHORT_HASH)
    with pytest.raises(ProtocolError, match=words):
        plan().on_memory(0.0, frame, HASHES)
