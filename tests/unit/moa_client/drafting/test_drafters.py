"""How drafters draft and write, the draft in flight, and the rows that it waits for; a companion's network is a tiny one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterThread, TokenWritten
from moa_client.drafting.drafters import CompanionDrafter, CompanionPair, LookupDrafter, MoaDrafter
from moa_client.drafting.pacing import RETRY_STEPS, DraftWindow
from moa_client.engine.resuming import Inbox
from moa_client.memory import PROMPT_HOLD_MS, MemoryPlan, RowsHeld
from moa_kernels import F32
from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.drafter.companion import Companion, recall_agreement, remember_agreement
from moa_shared.drafting.drafts import Rows
from moa_shared.drafting.growing import CHAIN, Growth, GrowthShape
from moa_shared.models.network.network import Network
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Memory, Plane, ThinMemory
from moa_shared.protocol.prefix_hash import SHORT_HASH, PrefixHashes
from moa_shared.sampling.settings import Constraint, Sampling, choice_of
from moa_shared.tree import DraftTree

from tests.support.counted import RecordingDrafter
from tests.support.tiny_models import SIZES, ModelWeights, tiny_model
from tests.support.toy_forms import FIRST, ToyForms

GREEDY = Sampling(0.0)
MODEL = tiny_model()
NETWORK = Network(ModelWeights(MODEL), MODEL.config, plain=True)
LIMIT = MODEL.config["max_position_embeddings"]
EMPTY = DraftTree((), ())


def drafter() -> CompanionDrafter:
    files = cast("Any", SimpleNamespace(target_id="small", fingerprint="", config=MODEL.config))
    companion = Companion(files, cast("Any", None), NETWORK, SIZES["vocab_size"], F32)
    return CompanionDrafter(companion, shape=CHAIN)


def text(length: int) -> list[int]:
    return [7 * place % 90 for place in range(length)]


def test_what_is_read_ahead_changes_nothing() -> None:
    ahead, at_once = drafter(), drafter()
    for each in (ahead, at_once):
        each.restart(text(60))
    while ahead.read_on(GREEDY, writes=True):
        pass
    assert ahead.write(EMPTY, GREEDY) == pytest.approx(at_once.write(EMPTY, GREEDY))
    assert ahead.grow(EMPTY, GREEDY) == at_once.grow(EMPTY, GREEDY)


def test_beyond_the_texts_that_it_was_made_for_it_says_nothing() -> None:
    full = drafter()
    full.restart(text(LIMIT - 1))
    token = full.write(EMPTY, GREEDY)
    assert token is not None
    assert full.write(DraftTree.chain([token[0]]), GREEDY) is None
    full.commit([token[0]])
    assert not full.read_on(GREEDY, writes=True)
    assert not full.grow(EMPTY, GREEDY).tokens


def test_beside_another_drafter_it_writes_and_no_draft_waits_for_it() -> None:
    pair = CompanionPair(LookupDrafter(4), drafter())
    pair.restart(text(100))
    assert not pair.reads_memory
    assert not pair.read_on(GREEDY, writes=False)
    assert pair.read_on(GREEDY, writes=True)
    pair.commit([3])
    assert pair.write(EMPTY, GREEDY) is not None


@pytest.mark.parametrize(
    "sampling", [Sampling(0.8, seed=3), Sampling(0.0, repeat_penalty=3.0)], ids=["sampled", "penalties"]
)
def test_while_it_only_reads_it_is_judged_by_what_it_would_have_written_in_that_sampling(
    tmp_path: Path, sampling: Sampling
) -> None:
    """A server whose model is the same says the same; the likeliest token is another one, more often than not."""
    writing, reading = drafter(), drafter()
    for each in (writing, reading):
        each.restart(text(20))
    for _ in range(40):
        token = writing.write(EMPTY, sampling)
        assert token is not None
        writing.commit([token[0]])
        reading.commit([token[0]])
    while reading.read_on(sampling, writes=True):
        pass
    assert reading._companion.agreement.tokens >= 8
    assert reading._companion.agreement.right == reading._companion.agreement.tokens
    remember_agreement(tmp_path, "small", "large", reading._companion.agreement)
    assert recall_agreement(tmp_path, "small", "large") == reading._companion.agreement


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_a_look_up_is_a_copy_from_the_conversation(tokens: list[int]) -> None:
    drafter = LookupDrafter(length=2)
    drafter.restart(tokens)
    chain = list(drafter.grow(EMPTY, Sampling()).tokens)
    assert not chain or any(
        tokens[at - 1] == tokens[-1] and tokens[at : at + len(chain)] == chain for at in range(1, len(tokens))
    )


def test_look_up_continues_below_any_draft_and_writes_standalone() -> None:
    drafter = LookupDrafter(length=2)
    drafter.restart([1, 2, 3, 4, 5, 9, 1, 2])
    assert drafter.grow(DraftTree.chain([]), Sampling()) == Growth((3, 4), (-1, 0))
    assert drafter.grow(DraftTree.chain([3, 4]), Sampling()) == Growth((5, 9), (1, 2))
    assert drafter.grow(DraftTree((3, 4, 7), (-1, 0, 0)), Sampling()) == Growth()
    assert drafter.write(DraftTree.chain([3]), Sampling()) == pytest.approx((4, 0.63))
    assert drafter.write(DraftTree.chain([8]), Sampling()) is None


class WrongDrafter(RecordingDrafter):
    logits = [0.0] * 49 + [9.0]

    def begin(self) -> Rows:
        return self.expand([0], [-1])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        return np.array([self.logits] * len(tokens), np.float32)


END = 95
CHOICE = choice_of(["red apple", "red pear", "green pear"])


def tokens_of(text: str) -> list[int]:
    return [ord(each) - FIRST for each in text]


class Compiler(ToyForms):
    def __init__(self) -> None:
        super().__init__(END)
        self.may = threading.Event()

    def begin(self, constraint: Constraint) -> ConstrainedText:
        assert self.may.wait(60)
        return super().begin(constraint)


class Flat(WrongDrafter):
    logits = [0.0] * (END + 1)


def sampling(start: int) -> Sampling:
    return Sampling(constraint=CHOICE).within(start)


def test_drafts_keep_to_the_form_as_soon_as_it_is_compiled() -> None:
    compiler, thread = Compiler(), ThreadPoolExecutor(1)
    drafter = MoaDrafter(
        Flat, reads_memory=False, shape=GrowthShape(3, 8, 0.001), forms=lambda form: thread.submit(compiler.begin, form)
    )
    question = tokens_of("What?")
    drafter.restart([*question, *tokens_of("r")])
    assert drafter.grow(EMPTY, sampling(5)).tokens != ()  # anything
    compiler.may.set()
    thread.submit(int).result(60)  # after what it was asked before
    assert drafter.grow(EMPTY, sampling(5)).tokens == tuple(tokens_of("ed "))
    drafter.commit(tokens_of("ed p"))
    assert drafter.grow(EMPTY, sampling(5)).tokens[:3] == tuple(tokens_of("ear"))
    assert drafter.write(DraftTree.chain(tokens_of("e")), sampling(5)) == (tokens_of("a")[0], 1.0)
    assert len(drafter.grow(EMPTY, Sampling()).tokens) == 3  # the next answer has none
    without_library = MoaDrafter(Flat, reads_memory=False, shape=GrowthShape(3, 8, 0.001))
    without_library.restart(question)
    assert without_library.grow(EMPTY, sampling(5)).tokens != ()


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
