"""Drafting for a server: a drafter thread that does what the test says, the draft in flight, and the rows it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterThread, TokenWritten
from moa_client.drafting.drafters import LookupDrafter
from moa_client.drafting.pacing import RETRY_STEPS, DraftWindow
from moa_client.engine.resuming import Inbox
from moa_client.memory import PROMPT_HOLD_MS, MemoryPlan, RowsHeld
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Memory, Plane, ThinMemory
from moa_shared.protocol.prefix_hash import SHORT_HASH, PrefixHashes
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree


class Reader(LookupDrafter):
    """Has so many pieces of text to read before it can write, and notes what it does."""

    def __init__(self, pieces: int) -> None:
        super().__init__(1)
        self.pieces = pieces
        self.done: list[str] = []
        self.is_read = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def restart(self, tokens: Sequence[int]) -> None:
        self.done.append("restart")

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        if self.pieces and writes:
            self.pieces -= 1
            self.done.append("read")
            if not self.pieces:
                self._loop.call_soon_threadsafe(self.is_read.set)
        return writes and self.pieces > 0

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        self.done.append("write")
        return 7, 1.0


async def test_a_text_is_read_in_pieces_with_the_calls_of_others_between() -> None:
    reader, inbox, executor = Reader(3), Inbox(), DrafterExecutor()
    thread = DrafterThread(reader, inbox.put_nowait, executor)
    thread.tell([1, 2, 3])
    thread.write(5, [], Sampling())
    other = executor.submit(lambda: reader.done.append("another's"))
    assert await inbox.get() == TokenWritten(5, 0, 7)
    await other
    assert reader.done == ["restart", "read", "another's", "read", "read", "write"]
    await asyncio.to_thread(executor.close)


NO_DRAFT = DraftTree((), ())


def measured(*, rtt_ms: float, hits: int, misses: int) -> DraftWindow:
    """A window that has seen plain steps of 50 ms, draft steps of 5 ms, and so many right and wrong drafts."""
    window = DraftWindow()
    window.on_drafted(0.0, 5.0)
    window.rtt_ms.add(rtt_ms)
    for number in range(hits + misses):
        right = number * hits // (hits + misses) < (number + 1) * hits // (hits + misses)
        window.on_verdict(0.0, DraftTree.chain([1]), [1 if right else 2], step_ms=50.0, verified=0)
    return window


def levels(window: DraftWindow, now_ms: float = 0.0) -> int:
    """How many levels it would draft if time stood still."""
    draft = NO_DRAFT
    while window.may_grow(draft, now_ms):
        draft = DraftTree.chain([1] * (len(draft) + 1))
    return len(draft)


def test_a_draft_that_comes_too_late_is_not_begun() -> None:
    assert levels(measured(rtt_ms=20, hits=35, misses=65)) > 0
    assert levels(measured(rtt_ms=400, hits=35, misses=65)) == 0
    assert levels(measured(rtt_ms=20, hits=35, misses=65), now_ms=400) == 0


def test_levels_that_the_server_has_no_time_for_are_not_drafted() -> None:
    window = measured(rtt_ms=0, hits=65, misses=35)
    reach = []
    for least_chance in (0.0, 0.1, 0.4, 0.9):
        window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0, least_chance=least_chance)
        reach.append(levels(window))
    assert reach == sorted(reach, reverse=True)
    assert reach[0] > reach[1] > reach[2] > reach[3] == 0
    assert levels(window, now_ms=RETRY_STEPS * 50.0 + 1) == 0  # each verdict says whether it still has none
    assert window.is_priced_out
    window.forget_server()
    window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0)
    assert levels(window) > 0
    assert not window.is_priced_out


HASHES = PrefixHashes(range(10))


def plan(*planes: Plane, codec: Codec = Codec.INT8) -> MemoryPlan:
    return MemoryPlan(lambda *_: None, dict.fromkeys(planes or (Plane.MEMORY,), 32), codec)


def rows(start: int, stop: int, plane: Plane = Plane.MEMORY, nbytes: int = 10) -> Memory:
    return Memory(start, stop - start, Codec.INT8, bytes(nbytes), plane, HASHES.at(stop) & SHORT_HASH)


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
