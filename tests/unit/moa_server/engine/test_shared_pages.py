"""The index against a plain list of the texts that are kept, and sessions over a tiny target that share pages."""

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import MemorySource
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import LiveSession
from moa_server.engine.prefix_index import PrefixIndex, TextPage
from moa_server.engine.registry import KVPool, SessionSize
from moa_server.engine.shared_pages import SharedPages
from moa_server.engine.stepper import Stepper, Work
from moa_server.session.memory_feed import Chunk
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import Verification
from moa_server.verifier import Target
from moa_server.verifier.kernel_target import KernelCache
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import AnswerSettings, Ask, Plane
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.skipping import examples
from tests.support.tiny_models import HYBRID, tiny_kernel_target, tiny_model

SIZE = 2  # tokens of a page of the index
Key = tuple[str, tuple[int, ...]]  # an owner and all tokens up to a page's end

owners = st.sampled_from(["a", "b"])
texts = st.lists(st.integers(0, 1), max_size=9)
kinds = st.sets(st.sampled_from(["x", "y"]))
holders = st.integers(0, 3)


def pages_of(tokens: list[int]) -> list[tuple[int, ...]]:
    """All tokens up to the end of each full page."""
    return [tuple(tokens[:stop]) for stop in range(SIZE, len(tokens) + 1, SIZE)]


@dataclass
class Known:
    """What is known of a page: the kinds of states kept, and when it was last let go."""

    page: TextPage
    kinds: set[str] = field(default_factory=set)
    let_go: int = 0

    @property
    def nbytes(self) -> int:
        return 10 + len(self.kinds)


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[TextPage] = []
        self.index: PrefixIndex[int] = PrefixIndex(SIZE, self.dropped.extend)
        self.known: dict[Key, Known] = {}
        self.held: dict[int, list[Key]] = {holder: [] for holder in range(4)}
        self.now = 0

    def users(self, key: Key) -> int:
        return sum(key in keys for keys in self.held.values())

    def let_go_of(self, keys: list[Key]) -> None:
        for key in reversed(keys):
            self.now += 1
            self.known[key].let_go = self.now

    @rule(holder=holders, owner=owners, tokens=texts, kinds=kinds)
    def read_and_keep(self, holder: int, owner: str, tokens: list[int], kinds: set[str]) -> None:
        """A session reads a text, and takes over what it may."""
        found = self.index.find(owner, tokens, kinds)
        keys: list[Key] = []
        for text in pages_of(tokens):
            known = self.known.get((owner, text))
            if known is None or not kinds <= known.kinds:
                break
            keys.append((owner, text))
        assert found == [self.known[key].page for key in keys]
        self.index.hold(holder, found)
        before, self.held[holder] = self.held[holder], keys
        self.let_go_of(before)
        added = self.index.extend(holder, owner, tokens, 10, dict.fromkeys(kinds, 1))
        for page, text in zip(added, pages_of(tokens)[len(keys) :], strict=True):
            known = self.known.setdefault((owner, text), Known(page))
            known.kinds |= kinds
            assert known.page is page
            self.held[holder].append((owner, text))

    @rule(owner=owners, tokens=texts)
    def ask_how_much_is_kept(self, owner: str, tokens: list[int]) -> None:
        hashes = PrefixHashes(tokens)
        kept = [text for text in pages_of(tokens) if (owner, text) in self.known]
        assert self.index.count_named(owner, [hashes.at(len(text)) for text in pages_of(tokens)]) == len(kept)

    @rule(holder=holders, keep=st.integers(0, 4))
    def let_go(self, holder: int, keep: int) -> None:
        self.index.let_go(holder, keep)
        self.let_go_of(self.held[holder][keep:])
        del self.held[holder][keep:]

    @rule(nbytes=st.integers(0, 60))
    def drop(self, nbytes: int) -> None:
        self.dropped.clear()
        self.index.drop(nbytes)
        expected = []
        for key in sorted((key for key in self.known if not self.users(key)), key=lambda key: self.known[key].let_go):
            if nbytes <= 0:
                break
            nbytes -= self.known[key].nbytes
            expected.append(self.known.pop(key).page)
        assert self.dropped == expected

    @rule(order=st.permutations(range(4)), count=st.integers(0, 4))
    def ask_what_would_be_left(self, order: list[int], count: int) -> None:
        leaving = order[:count]
        left = sum(self.index.bytes_left_by(leaving))
        others = {key for holder in order[count:] for key in self.held[holder]}
        theirs = {key for holder in leaving for key in self.held[holder]}
        assert left == sum(self.known[key].nbytes for key in theirs - others)

    @invariant()
    def every_page_counts_once_and_holders_hold_a_path(self) -> None:
        known = self.known
        assert self.index.nbytes == sum(each.nbytes for each in known.values())
        assert self.index.spare_nbytes == sum(each.nbytes for key, each in known.items() if not self.users(key))
        assert all((owner, text[:-SIZE]) in known for owner, text in known if len(text) > SIZE)
        for holder, keys in self.held.items():
            assert list(self.index.held(holder)) == [known[key].page for key in keys]
        assert {owner for owner, _ in known} == {owner for owner, root in self.index._roots.items() if root.pages}


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=examples(150), stateful_step_count=25)


def test_equal_hashes_are_no_equal_texts_and_an_asker_asks_about_one_text_at_a_time() -> None:
    """Pages are found by their tokens, and by hashes only from the beginning of a text on."""
    index: PrefixIndex[str] = PrefixIndex(SIZE, lambda _: None)
    index.extend("one", "a", [1, 2, 5, 6], 10)
    texts = [3, 4, 5, 6], [5, 6], [1, 2, 5, 6, 7], [1, 2, 6, 5]
    assert [len(index.find("a", text)) for text in texts] == [0, 0, 2, 1]
    assert index.find("b", [1, 2]) == []
    first, second = PrefixHashes([1, 2]).at(2), PrefixHashes([1, 2, 5, 6]).at(4)
    assert index.count_named("a", [first, second]) == 2
    assert index.count_named("a", [second]) == index.count_named("a", [7, first, second]) == 0
    assert index.count_named("b", [first, second]) == 0


# ---------------------------------------------------------------- sessions

VOCAB, CONTEXT, PAGE = 61, 400, 64
WIDTH = 8
TEXT = [random.Random(5).randrange(VOCAB) for _ in range(200)]
Rows = npt.NDArray[np.float32]


def encode(kv: Rows) -> Rows:
    return np.ascontiguousarray(kv.reshape(len(kv), -1)[:, ::16][:, :WIDTH])


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=CONTEXT))


@pytest.fixture(scope="module")
def recurrent() -> Target:
    kinds = ["linear_attention", "full_attention", "full_attention"]
    return tiny_kernel_target(tiny_model(HYBRID, vocab_size=VOCAB, layer_types=kinds, max_position_embeddings=CONTEXT))


class Jobs(SessionJobs):
    """Jobs that run when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.lost: list[LiveSession] = []

    def run(self, job: Callable[[], None]) -> None:
        self.waiting.append(job)

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def post(self, reply: Callable[[], None]) -> None:
        reply()

    def post_loss(self, live: LiveSession, error: Exception) -> None:
        self.lost.append(live)


class Bench:
    def __init__(self, target: Target, source: MemorySource | None = None, *, everyone: bool = False) -> None:
        self.stepper = Stepper(target, [source or MemorySource(encode, WIDTH, 1)])
        self.jobs = Jobs()
        self.pages = SharedPages(self.jobs, lambda _: None, target.page_tokens, everyone=everyone)
        self.index = self.pages.index

    def live(self, client: str = "a", *, memory: bool = True, state: bool = True, drafts: bool = False) -> LiveSession:
        limits = SessionLimits(CONTEXT, VOCAB, checkpoint_tokens=self.stepper.target.checkpoint_tokens)
        session = Session(limits, end_of_text=frozenset(), decode=str, run_ahead=True)
        live = LiveSession(client.encode(), session, self.stepper.new_tensors(), caller=Caller(client))
        if memory:
            source = self.stepper.sources[0]
            kept = self.stepper.kept_widths(source, self.stepper.widths(source, reused_state=state), drafts=drafts)
            live.drafting.keep(source, kept)
            live.tensors.keep_rows(source, kept)
        return live

    def ask(self, live: LiveSession, text: Sequence[int]) -> bool:
        """Whether the session is about to be given pages."""
        live.session.on_open(text)
        held = len(live.session.tokens)
        live.session.on_ask(Ask(1, held, live.session.hashes.at(held), (), AnswerSettings(), held))
        return self.pages.adopt(live)

    def take_over(self, live: LiveSession, text: Sequence[int]) -> None:
        assert self.ask(live, text)
        before = live.session.cached
        self.jobs.work()
        assert live.session.cached > before

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
            self.pages.keep(live)
            self.jobs.work()
            if outcome is not None:
                break
        return fed

    def lender(self, text: Sequence[int] = TEXT, **options: bool) -> LiveSession:
        """A session that has read a text, of which nothing was kept."""
        live = self.live("a", **options)
        assert not self.ask(live, text)
        assert self.read(live) == text
        return live

    def afresh(self, text: Sequence[int]) -> LiveSession:
        """A session that has read a text, and shares with nobody."""
        other = Bench(self.stepper.target)
        other.stepper = self.stepper
        return other.lender(text)

    def rows(self, live: LiveSession, plane: Plane, stop: int) -> bytes:
        chunk = Chunk(plane, 0, stop, Codec.BF16, stop * row_bytes(Codec.BF16, live.tensors.planes[plane].width))
        return self.stepper.code(live.tensors, chunk).payload

    @property
    def kept(self) -> list[TextPage]:
        def below(page: TextPage) -> Iterator[TextPage]:
            for each in page.pages.values():
                yield each
                yield from below(each)

        return [page for root in self.index._roots.values() for page in below(root)]

    @property
    def kept_nbytes(self) -> int:
        """What the pages really take."""
        pages = [[*page.states.values(), page.keys_values, page.checkpoint] for page in self.kept]
        return sum(each.nbytes for page in pages for each in page if each is not None)


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
    lender, taker = bench.lender(), bench.live()
    bench.take_over(taker, TEXT[: 2 * PAGE])
    assert bench.read(taker) == TEXT[PAGE : 2 * PAGE]  # the newest token is always fed
    bench.take_over(taker := bench.live(), TEXT)
    assert bench.read(taker) == TEXT[3 * PAGE :]
    assert_alike(bench, taker, bench.afresh(TEXT))
    assert_alike(bench, lender, taker)


def test_pages_are_held_once_and_freed_with_the_last_holder(bench: Bench) -> None:
    lender, taker = bench.lender(), bench.live()
    bench.take_over(taker, TEXT)
    caches = [live.tensors.cache for live in (lender, taker)]
    pages = [cache.pages._pages[:3] for cache in caches if isinstance(cache, KernelCache)]
    assert all(one is other for one, other in zip(*pages, strict=True))
    assert bench.index.nbytes == bench.kept_nbytes == 3 * bench.pages.page_nbytes(taker)
    memory = [weakref.ref(page.data.base) for page in pages[0]]
    del pages, caches
    lender.tensors.release()
    bench.index.let_go(lender)
    bench.index.let_go(taker)
    bench.index.drop(1)
    bench.jobs.work()
    assert [each() is None for each in memory] == [False] * 3  # the taker still has them
    taker.tensors.release()
    assert [each() is None for each in memory] == [False, False, True]
    bench.index.drop(bench.index.nbytes)
    bench.jobs.work()
    assert [each() is None for each in memory] == [True] * 3


@pytest.mark.parametrize("common", [10, 63, 64, 100])
def test_the_lender_writes_another_text_and_the_taker_s_stays(bench: Bench, common: int) -> None:
    lender, taker = bench.lender(), bench.live()
    bench.take_over(taker, TEXT)
    other = [*TEXT[:common], *[(token + 1) % VOCAB for token in TEXT[common:]]]
    assert not bench.ask(lender, other)
    assert len(bench.index.held(lender)) == common // PAGE
    assert bench.read(lender) == other[common:]
    assert_alike(bench, lender, bench.afresh(other))
    bench.read(taker)
    assert_alike(bench, taker, bench.afresh(TEXT))


def test_what_is_taken_over_lies_between_forwards_and_begins_once(bench: Bench) -> None:
    bench.lender()
    taker, closed = bench.live(), bench.live()
    taker.turn.stepping = True
    assert not bench.ask(taker, TEXT)
    taker.turn.stepping = False
    assert bench.pages.adopt(taker)
    assert bench.pages.adopt(taker)
    assert len(bench.jobs.waiting) == 1
    closed.closed = True
    assert not bench.ask(closed, TEXT)


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_session_that_has_moved_on_takes_nothing_over(bench: Bench, asks_again: bool) -> None:
    bench.lender()
    taker = bench.live()
    assert bench.ask(taker, TEXT)
    if asks_again:
        taker.session.on_open([1, 2])
    else:
        taker.session.forget_cache(0)
    bench.jobs.work()
    assert taker.session.cached == 0
    text = [*TEXT[:100], 7]
    bench.take_over(taker, text)  # it still can, of its new text
    bench.read(taker)
    assert_alike(bench, taker, bench.afresh(text))


@pytest.mark.parametrize("everyone", [False, True])
def test_clients_share_nothing_unless_all_do_and_without_pages_nobody_does(target: Target, everyone: bool) -> None:
    bench = Bench(target, everyone=everyone)
    bench.lender()
    assert bench.ask(bench.live("b"), TEXT) is everyone
    bench.pages = SharedPages(bench.jobs, lambda _: None, 0, everyone=everyone)
    live = bench.lender()
    assert not bench.ask(bench.live(), TEXT)
    assert bench.pages.page_nbytes(live) == bench.pages.index.nbytes == 0


def test_a_conversation_that_moves_to_another_client_keeps_what_it_says_there_to_itself(bench: Bench) -> None:
    live = bench.lender()
    live.caller = Caller("b")
    text = [*TEXT, *TEXT[:150]]
    bench.ask(live, text)
    assert bench.read(live)[-150:] == TEXT[:150]
    assert len(bench.index.find("a", text)) == 3
    assert bench.index.find("b", text) == []


OF_STATES = MemorySource(lambda rows: rows[:, -WIDTH:], WIDTH, None, reads_layers=(0, 1))


@pytest.mark.parametrize("source", [None, OF_STATES], ids=["a reused state", "memory rows made of states"])
def test_states_go_along_with_their_pages(target: Target, source: MemorySource | None) -> None:
    bench = Bench(target, source)
    bench.lender(memory=False)
    kept = bench.index.nbytes
    first, second = bench.lender(), bench.live()  # the states were missing
    [plane] = first.tensors.states
    states = first.tensors.planes[plane]
    assert bench.index.nbytes == kept + 3 * 2 * PAGE * states.width == bench.kept_nbytes
    bench.take_over(second, TEXT)
    np.testing.assert_array_equal(second.tensors.planes[plane].read(0, 3 * PAGE), states.read(0, 3 * PAGE))
    bench.take_over(bench.live(memory=False), TEXT)


def test_states_for_the_servers_own_drafter_go_along_too(target: Target) -> None:
    bench = Bench(target)
    bench.stepper.sources = (replace(bench.stepper.sources[0], drafter_layer=2),)
    bench.lender(drafts=True)
    second = bench.live(drafts=True)
    bench.take_over(second, TEXT)
    expected = target.forward(target.new_cache(), TEXT, want_state_layer=2).states[2]
    got = second.tensors.read_for_drafter(Plane.REUSED_STATE, 0, 3 * PAGE)
    np.testing.assert_allclose(got, expected[: 3 * PAGE], rtol=0.01)
    assert not np.array_equal(got, second.tensors.read(Plane.REUSED_STATE, 0, 3 * PAGE))
    assert bench.kept_nbytes == bench.index.nbytes
    bench.take_over(bench.live(), TEXT)  # it needs fewer states
    bench.take_over(bench.live(state=False), TEXT)


def test_pages_that_are_not_kept_are_read_again_and_change_nothing(bench: Bench) -> None:
    bench.lender()
    taker = bench.live()
    assert bench.ask(taker, TEXT)
    bench.index.held(taker)[-1].keys_values = None
    bench.jobs.work()
    assert taker.tensors.nbytes == 0
    assert bench.jobs.lost == []
    assert not bench.pages.adopt(taker)  # it reads its text itself, and so does the next one
    assert bench.read(taker) == TEXT
    bench.take_over(bench.live(), TEXT)


def test_pages_that_could_not_be_kept_are_given_to_nobody_and_end_one_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        raise MemoryError

    lender, taker = bench.live(), bench.live()
    assert isinstance(lender.tensors.cache, KernelCache)
    monkeypatch.setattr(lender.tensors.cache.pages, "full_page", fail)
    bench.ask(lender, TEXT)
    bench.read(lender)
    assert bench.jobs.lost == [lender]
    assert not bench.ask(taker, TEXT)
    bench.index.let_go(lender)
    bench.index.drop(1 << 30)
    assert bench.index.nbytes == 0
    assert bench.kept == []


# ---------------------------------------------------------------- with recurrent states


def test_text_is_taken_over_up_to_a_checkpoint_with_the_bits_of_what_is_read(recurrent: Target) -> None:
    bench = Bench(recurrent)
    lender, taker = bench.lender(), bench.live()
    bench.take_over(taker, TEXT)
    assert taker.session.cached == 3 * PAGE
    bench.read(taker)
    assert_alike(bench, taker, bench.afresh(TEXT))
    assert_alike(bench, lender, taker)
    assert bench.index.nbytes == bench.kept_nbytes
    hashes = [PrefixHashes(TEXT).at(PAGE * page) for page in (1, 2, 3)]
    assert [bench.pages.cached_tokens(lender.caller, hashes[:count]) for count in (2, 3)] == [0, 3 * PAGE]


def test_where_texts_depart_there_is_a_checkpoint_from_the_second_one_on(recurrent: Target) -> None:
    bench = Bench(recurrent)
    texts = [[*TEXT[:150], *[(token + number) % VOCAB for token in TEXT[:60]]] for number in range(3)]
    lives = [bench.live() for _ in texts]
    assert [bench.ask(live, text) for live, text in zip(lives[:2], texts, strict=False)] == [False, False]
    bench.read(lives[0])
    assert not bench.pages.adopt(lives[1])  # their pages are kept, and no states between them
    assert bench.read(lives[1]) == texts[1]
    bench.take_over(lives[2], texts[2])
    assert lives[2].session.cached == 2 * PAGE
    bench.read(lives[2])
    assert_alike(bench, lives[2], bench.afresh(texts[2]))
    assert bench.index.nbytes == bench.kept_nbytes


def test_checkpoints_that_no_other_text_can_use_go_with_the_session_s_own(recurrent: Target) -> None:
    """However many answers there are, the pages of a conversation hold no more than it was promised."""
    bench = Bench(recurrent)
    live, text = bench.live(), list(TEXT[:70])
    for _ in range(4):
        bench.ask(live, text)
        bench.read(live)
        text = [*live.session.tokens, *TEXT[:70]]
    held = bench.index.held(live)
    assert [page.checkpoint_nbytes is not None for page in held] == [False, False, True, True]
    assert [page.checkpoint is not None for page in held] == [False, False, True, True]
    assert bench.index.count_checkpoints(live, live.session.states.checkpoints) == 2
    assert bench.index.nbytes == bench.kept_nbytes
    bench.index.let_go(live)
    bench.index.drop(1 << 30)
    bench.jobs.work()
    assert bench.index.nbytes == bench.index.spare_nbytes == 0
    assert [page.checkpoint for page in held] == [None] * len(held)


def test_what_is_promised_counts_each_checkpoint_once(recurrent: Target) -> None:
    """In the session's promise until it is shared, then in the index."""
    bench = Bench(recurrent)
    live, cache = bench.live(), recurrent.new_cache()
    pool = KVPool(1 << 30, lambda _: None, bench.index)
    nbytes = SessionSize(bench.stepper, 64).most_nbytes(cache, live.drafting.widths, CONTEXT, None)
    pool.reserve(live, nbytes, bench.pages.page_nbytes(live), cache.checkpoint_nbytes)
    for text in (TEXT, TEXT[:150]):
        bench.ask(live, text)
        bench.read(live)
        assert pool.promised - bench.index.spare_nbytes == nbytes
        assert bench.index.count_checkpoints(live, live.session.states.checkpoints) == 1
        assert pool.held - bench.index.spare_nbytes <= nbytes


def test_a_replica_without_the_checkpoint_reads_the_text_itself(recurrent: Target) -> None:
    bench = Bench(recurrent)
    bench.lender()
    taker = bench.live()
    assert bench.ask(taker, TEXT)
    bench.index.held(taker)[-1].checkpoint = None
    bench.jobs.work()
    assert bench.jobs.lost == []
    assert bench.read(taker) == TEXT
    assert_alike(bench, taker, bench.afresh(TEXT))
