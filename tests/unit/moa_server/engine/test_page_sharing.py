"""Sessions over a tiny target that share pages, stepped by hand."""

import random
import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from moa_server.access.limits import Caller
from moa_server.engine.live_session import LiveSession
from moa_server.engine.page_index import PrefixIndex
from moa_server.engine.page_sharing import Adoption, PrefixSharing
from moa_server.engine.stepper import MemorySource, Stepper, Work
from moa_server.session.memory_feed import Chunk, RowStore
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import Verification
from moa_server.verifier import Target
from moa_server.verifier.kernel_target import KernelCache
from moa_shared.errors import InternalError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import Ask, Plane

from tests.support.tiny_models import tiny_kernel_target, tiny_model

VOCAB, CONTEXT, PAGE = 61, 400, 64
WIDTH = 8
TEXT = [random.Random(5).randrange(VOCAB) for _ in range(200)]
Rows = npt.NDArray[np.float32]


def encode(kv: Rows) -> Rows:
    return np.ascontiguousarray(kv.reshape(len(kv), -1)[:, ::16][:, :WIDTH])


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=CONTEXT))


class Bench:
    def __init__(self, target: Target, source: MemorySource | None = None, *, everyone: bool = False) -> None:
        source = source or MemorySource(encode, WIDTH, 1)
        self.stepper = Stepper(target, [source])
        self.dropped: list[int] = []
        self.index: PrefixIndex[LiveSession] = PrefixIndex(target.page_tokens, self.dropped.extend)
        self.sharing = PrefixSharing(self.stepper, self.index, everyone=everyone)

    def live(self, client: str = "a", *, memory: bool = True, state: bool = True, drafts: bool = False) -> LiveSession:
        session = Session(SessionLimits(CONTEXT, VOCAB), end_of_text=frozenset(), decode=str, run_ahead=True)
        live = LiveSession(client.encode(), session, self.stepper.new_tensors(), caller=Caller(client))
        if memory:
            source = self.stepper.sources[0]
            kept = self.stepper.kept_widths(source, self.stepper.widths(source, reused_state=state), drafts=drafts)
            live.drafting.keep(source, kept)
            live.tensors.keep_rows(source, kept)
        return live

    def ask(self, live: LiveSession, text: Sequence[int]) -> Adoption | None:
        live.session.on_open(text)
        held = len(live.session.tokens)
        live.session.on_ask(Ask(1, held, live.session.hashes.at(held), (), AnswerSettings(), held))
        return self.sharing.begin(live)

    def take_over(self, live: LiveSession, text: Sequence[int]) -> None:
        adoption = self.ask(live, text)
        assert adoption is not None
        self.sharing.take_over(adoption)
        assert adoption.commit()

    def read(self, live: LiveSession) -> list[int]:
        """Reads what is not read, to the first token; which tokens were fed."""
        fed: list[int] = []
        while (plan := live.session.plan_step()) is not None:
            [outcome] = self.stepper.verify_all([Work(live.tensors, plan)])
            fed += plan.feed
            assert not isinstance(outcome, Exception)
            if isinstance(outcome, Verification):
                assert live.session.on_verified(plan, outcome)
            else:
                assert live.session.on_prefilled(plan)
            if (filled := self.sharing.on_read(live)) is not None:
                self.sharing.keep(filled)
            if outcome is not None:
                break
        return fed

    def afresh(self, text: Sequence[int]) -> LiveSession:
        """A session that has read a text, and shares with nobody."""
        other = Bench(self.stepper.target)
        other.stepper = self.stepper
        live = self.live("none")
        other.ask(live, text)
        other.read(live)
        return live

    def rows(self, live: LiveSession, plane: Plane, stop: int) -> bytes:
        chunk = Chunk(plane, 0, stop, Codec.BF16, stop * row_bytes(Codec.BF16, live.tensors.planes[plane].width))
        return self.stepper.code(live.tensors, chunk).payload


@pytest.fixture
def bench(target: Target) -> Bench:
    return Bench(target)


def assert_alike(bench: Bench, one: LiveSession, other: LiveSession) -> None:
    """To the bit: keys, values, states, memory rows, the token chosen."""
    assert one.session.tokens == other.session.tokens
    cached = one.session.cached
    assert cached == other.session.cached
    np.testing.assert_array_equal(one.tensors.cache.lsa_input(0, cached), other.tensors.cache.lsa_input(0, cached))
    for plane in (Plane.REUSED_STATE, Plane.MEMORY):
        assert bench.rows(one, plane, cached) == bench.rows(other, plane, cached)


def test_what_is_taken_over_has_the_bits_of_what_is_read(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    assert bench.ask(lender, TEXT) is None
    assert bench.read(lender) == TEXT
    bench.take_over(taker, TEXT)
    assert taker.session.cached == 3 * PAGE
    assert bench.read(taker) == TEXT[3 * PAGE :]
    assert_alike(bench, taker, bench.afresh(TEXT))
    assert_alike(bench, lender, taker)


def test_pages_are_held_once_and_freed_with_the_last_holder(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    bench.ask(lender, TEXT)
    bench.read(lender)
    bench.take_over(taker, TEXT)
    caches = [live.tensors.cache for live in (lender, taker)]
    assert all(isinstance(cache, KernelCache) for cache in caches)
    pages = [cache.pages._pages[:3] for cache in caches if isinstance(cache, KernelCache)]
    assert all(one is other for one, other in zip(*pages, strict=True))
    assert bench.index.nbytes == bench.sharing._store.nbytes == 3 * bench.sharing.page_nbytes(taker)
    memory = [weakref.ref(page.data.base) for page in pages[0]]
    del pages, caches
    lender.tensors.release()
    bench.index.let_go(lender)
    bench.index.let_go(taker)
    bench.index.drop(1)
    bench.sharing.drop(bench.dropped)
    assert [each() is None for each in memory] == [False] * 3  # the taker still has them
    taker.tensors.release()
    assert [each() is None for each in memory] == [False, False, True]
    bench.index.drop(bench.index.nbytes)
    bench.sharing.drop(bench.dropped)
    assert [each() is None for each in memory] == [True] * 3
    assert bench.sharing._store.nbytes == 0


@pytest.mark.parametrize("common", [10, 63, 64, 100])
def test_the_lender_writes_another_text_and_the_taker_s_stays(bench: Bench, common: int) -> None:
    lender, taker = bench.live(), bench.live()
    bench.ask(lender, TEXT)
    bench.read(lender)
    bench.take_over(taker, TEXT)
    other = [*TEXT[:common], *[(token + 1) % VOCAB for token in TEXT[common:]]]
    assert bench.ask(lender, other) is None
    assert len(bench.index.held(lender)) == common // PAGE
    assert bench.read(lender) == other[common:]
    assert_alike(bench, lender, bench.afresh(other))
    bench.read(taker)
    assert_alike(bench, taker, bench.afresh(TEXT))


def test_rows_of_the_text_before_are_void_after_a_takeover(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    other = [*TEXT[:30], *[(token + 1) % VOCAB for token in TEXT[30:]]]
    bench.ask(lender, other)
    bench.read(lender)
    bench.ask(taker, TEXT)
    bench.read(taker)
    bench.rows(taker, Plane.MEMORY, 200)
    bench.take_over(taker, other)
    bench.read(taker)
    assert_alike(bench, taker, bench.afresh(other))


def test_what_is_taken_over_lies_between_forwards(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    bench.ask(lender, TEXT)
    bench.read(lender)
    taker.turn.stepping = True
    assert bench.ask(taker, TEXT) is None
    taker.turn.stepping = False
    assert bench.sharing.begin(taker) is not None
    closed = bench.live()
    closed.closed = True
    assert bench.ask(closed, TEXT) is None


def test_a_session_that_has_moved_on_takes_nothing_over(bench: Bench) -> None:
    lender = bench.live()
    bench.ask(lender, TEXT)
    bench.read(lender)
    for asks_again in (True, False):
        taker = bench.live()
        adoption = bench.ask(taker, TEXT)
        assert adoption is not None
        if asks_again:
            taker.session.on_open([1, 2])
        else:
            taker.session.forget_cache(0)
        bench.sharing.take_over(adoption)
        assert not adoption.commit()
        assert taker.session.cached == 0
        text = [*TEXT[:100], 7]
        bench.take_over(taker, text)  # it still can, of its new text
        bench.read(taker)
        assert_alike(bench, taker, bench.afresh(text))


def test_the_newest_token_is_always_fed(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    bench.ask(lender, TEXT)
    bench.read(lender)
    bench.take_over(taker, TEXT[: 2 * PAGE])
    assert bench.read(taker) == TEXT[PAGE : 2 * PAGE]
    again = bench.live()
    assert bench.ask(again, TEXT[:PAGE]) is None


@pytest.mark.parametrize("everyone", [False, True])
def test_clients_share_nothing_unless_all_do(target: Target, everyone: bool) -> None:
    bench = Bench(target, everyone=everyone)
    mine, theirs = bench.live("a"), bench.live("b")
    bench.ask(mine, TEXT)
    bench.read(mine)
    assert (bench.ask(theirs, TEXT) is not None) is everyone


def test_a_conversation_that_moves_to_another_client_keeps_what_it_says_there_to_itself(bench: Bench) -> None:
    live = bench.live("a")
    bench.ask(live, TEXT)
    bench.read(live)
    live.caller = Caller("b")
    text = [*TEXT, *TEXT[:150]]
    bench.ask(live, text)
    assert bench.read(live)[-150:] == TEXT[:150]
    assert len(bench.index.find("a", text)) == 3
    assert bench.index.find("b", text) == []


def the_states(live: LiveSession) -> RowStore:
    """The rows that only a forward makes."""
    [plane] = live.tensors.states
    return live.tensors.planes[plane]


OF_STATES = MemorySource(lambda rows: rows[:, -WIDTH:], WIDTH, None, reads_layers=(0, 1))


@pytest.mark.parametrize("source", [None, OF_STATES], ids=["a reused state", "memory rows made of states"])
def test_states_go_along_with_their_pages(target: Target, source: MemorySource | None) -> None:
    bench = Bench(target, source)
    plain, first, second = bench.live(memory=False), bench.live(), bench.live()
    bench.ask(plain, TEXT)
    bench.read(plain)
    kept = bench.index.nbytes
    assert bench.ask(first, TEXT) is None  # the states are missing
    assert bench.read(first) == TEXT
    states = the_states(first)
    assert bench.index.nbytes == kept + 3 * 2 * PAGE * states.width
    assert bench.sharing._store.nbytes == bench.index.nbytes
    bench.take_over(second, TEXT)
    np.testing.assert_array_equal(the_states(second).read(0, 3 * PAGE), states.read(0, 3 * PAGE))
    third = bench.live(memory=False)
    bench.take_over(third, TEXT)


def test_states_for_the_servers_own_drafter_go_along_too(target: Target) -> None:
    bench = Bench(target)
    bench.stepper.sources = (replace(bench.stepper.sources[0], drafter_layer=2),)
    first, second, without = (bench.live(drafts=drafts) for drafts in (True, True, False))
    bench.ask(first, TEXT)
    bench.read(first)
    bench.take_over(second, TEXT)
    expected = target.forward(target.new_cache(), TEXT, want_state_layer=2).state
    assert expected is not None
    got = second.tensors.read_for_drafter(Plane.REUSED_STATE, 0, 3 * PAGE)
    np.testing.assert_allclose(got, expected[: 3 * PAGE], rtol=0.01)
    assert not np.array_equal(got, second.tensors.read(Plane.REUSED_STATE, 0, 3 * PAGE))
    assert bench.sharing._store.nbytes == bench.index.nbytes
    bench.take_over(without, TEXT)  # it needs fewer states


def test_a_client_that_reuses_no_layers_needs_no_states(bench: Bench) -> None:
    plain, taker = bench.live(memory=False), bench.live(state=False)
    bench.ask(plain, TEXT)
    bench.read(plain)
    bench.take_over(taker, TEXT)
    bench.read(taker)
    assert bench.rows(taker, Plane.MEMORY, 200) == bench.rows(bench.afresh(TEXT), Plane.MEMORY, 200)


def test_pages_that_are_not_kept_are_a_defect_that_changes_nothing(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    bench.ask(lender, TEXT)
    bench.read(lender)
    adoption = bench.ask(taker, TEXT)
    assert adoption is not None
    bench.sharing.drop([adoption.pages[-1].number])
    with pytest.raises(InternalError, match="are not kept, or lack their states"):
        bench.sharing.take_over(adoption)
    assert taker.tensors.nbytes == 0
    bench.sharing.discard(adoption)
    assert bench.sharing.begin(taker) is None  # it reads its text itself, and so does the next one
    assert bench.read(taker) == TEXT
    bench.take_over(bench.live(), TEXT)


def test_pages_that_could_not_be_kept_are_given_to_nobody(bench: Bench) -> None:
    lender, taker = bench.live(), bench.live()
    bench.ask(lender, TEXT)
    while (filled := bench.sharing.on_read(lender)) is None:  # the store never has them
        plan = lender.session.plan_step()
        assert plan is not None
        [outcome] = bench.stepper.verify_all([Work(lender.tensors, plan)])
        if isinstance(outcome, Verification):
            lender.session.on_verified(plan, outcome)
        else:
            lender.session.on_prefilled(plan)
    bench.sharing.discard(filled)
    assert bench.ask(taker, TEXT) is None
    bench.index.let_go(lender)
    bench.index.drop(1 << 30)
    assert bench.index.nbytes == bench.index.pages == 0


@pytest.mark.torch
def test_targets_in_torch_share_nothing() -> None:
    from moa_server.verifier.torch_target import TorchTarget

    from tests.support.torch_models import torch_model

    bench = Bench(TorchTarget(torch_model(vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=CONTEXT)))
    one, two = bench.live(), bench.live()
    bench.ask(one, TEXT)
    bench.read(one)
    assert bench.ask(two, TEXT) is None
    assert bench.read(two) == TEXT
    assert bench.sharing.page_nbytes(one) == bench.index.nbytes == 0
