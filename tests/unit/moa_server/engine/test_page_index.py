"""The index against a plain list of the texts that are kept."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from moa_server.engine.page_index import PrefixIndex
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.skipping import examples

SIZE = 2  # tokens of a page
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

    kinds: set[str] = field(default_factory=set)
    let_go: int = 0

    @property
    def nbytes(self) -> int:
        return 10 + len(self.kinds)


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []
        self.index: PrefixIndex[int] = PrefixIndex(SIZE, self.dropped.extend)
        self.known: dict[Key, Known] = {}
        self.held: dict[int, list[Key]] = {holder: [] for holder in range(4)}
        self.numbers: dict[Key, int] = {}
        self.now = 0

    def users(self, key: Key) -> int:
        return sum(key in keys for keys in self.held.values())

    def let_go_of(self, holder: int, keep: int) -> None:
        for key in reversed(self.held[holder][keep:]):
            self.held[holder].remove(key)
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
        assert [page.number for page in found] == [self.numbers[key] for key in keys]
        self.index.hold(holder, found)
        before, self.held[holder] = self.held[holder], keys
        self.held[holder] = [*before, *keys]
        for key in reversed(before):
            self.held[holder].remove(key)
            self.now += 1
            self.known[key].let_go = self.now
        added = self.index.extend(holder, owner, tokens, 10, dict.fromkeys(kinds, 1))
        for page, text in zip(added, pages_of(tokens)[len(keys) :], strict=True):
            known = self.known.setdefault((owner, text), Known())
            known.kinds |= kinds
            assert self.numbers.setdefault((owner, text), page.number) == page.number
            self.held[holder].append((owner, text))

    @rule(owner=owners, tokens=texts)
    def ask_how_much_is_kept(self, owner: str, tokens: list[int]) -> None:
        hashes = PrefixHashes(tokens)
        kept = [text for text in pages_of(tokens) if (owner, text) in self.known]
        assert self.index.count_named(owner, [hashes.at(len(text)) for text in pages_of(tokens)]) == len(kept)

    @rule(holder=holders, keep=st.integers(0, 4))
    def let_go(self, holder: int, keep: int) -> None:
        self.index.let_go(holder, keep)
        self.let_go_of(holder, keep)

    @rule(nbytes=st.integers(0, 60))
    def drop(self, nbytes: int) -> None:
        self.dropped.clear()
        self.index.drop(nbytes)
        expected = []
        for key in sorted((key for key in self.known if not self.users(key)), key=lambda key: self.known[key].let_go):
            if nbytes <= 0:
                break
            nbytes -= self.known.pop(key).nbytes
            expected.append(self.numbers.pop(key))
        assert self.dropped == expected

    @rule(order=st.permutations(range(4)), count=st.integers(0, 4))
    def ask_what_would_be_left(self, order: list[int], count: int) -> None:
        leaving = order[:count]
        left = sum(self.index.bytes_left_by(leaving))
        others = {key for holder in order[count:] for key in self.held[holder]}
        theirs = {key for holder in leaving for key in self.held[holder]}
        assert left == sum(self.known[key].nbytes for key in theirs - others)

    @invariant()
    def every_page_counts_once(self) -> None:
        assert self.index.pages == len(self.known)
        assert self.index.nbytes == sum(known.nbytes for known in self.known.values())
        assert self.index.spare_nbytes == sum(known.nbytes for key, known in self.known.items() if not self.users(key))

    @invariant()
    def holders_hold_a_path(self) -> None:
        for holder, keys in self.held.items():
            assert [page.number for page in self.index.held(holder)] == [self.numbers[key] for key in keys]

    @invariant()
    def what_continues_a_page_goes_first(self) -> None:
        assert all((owner, text[:-SIZE]) in self.known for owner, text in self.known if len(text) > SIZE)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=examples(150), stateful_step_count=25)


def test_equal_hashes_are_no_equal_texts() -> None:
    """Pages are found by their tokens: a text that continues alike after another beginning is another text."""
    index: PrefixIndex[str] = PrefixIndex(SIZE, lambda _: None)
    index.extend("one", "a", [1, 2, 5, 6], 10)
    assert index.find("a", [3, 4, 5, 6]) == []
    assert index.find("a", [5, 6]) == []
    assert len(index.find("a", [1, 2, 5, 6, 7])) == 2
    assert len(index.find("a", [1, 2, 6, 5])) == 1
    assert index.find("b", [1, 2, 5, 6]) == []


def test_an_asker_asks_about_one_text_at_a_time() -> None:
    """Hashes of other lengths, or without those before them, find nothing."""
    index: PrefixIndex[str] = PrefixIndex(SIZE, lambda _: None)
    index.extend("one", "a", [1, 2, 5, 6], 10)
    first, second = PrefixHashes([1, 2]).at(2), PrefixHashes([1, 2, 5, 6]).at(4)
    assert index.count_named("a", [first, second]) == 2
    assert index.count_named("a", [second]) == index.count_named("a", [7, first, second]) == 0
    assert index.count_named("b", [first, second]) == 0


def test_nothing_is_shared_without_pages() -> None:
    index: PrefixIndex[str] = PrefixIndex(0, lambda _: None)
    assert index.extend("one", "a", [1, 2, 3], 10) == []
    assert index.find("a", [1, 2, 3]) == []
    assert (index.pages, index.nbytes) == (0, 0)


def test_an_owner_s_last_page_takes_all_trace_of_the_owner_with_it() -> None:
    index: PrefixIndex[str] = PrefixIndex(SIZE, lambda _: None)
    index.extend("one", "a", [1, 2, 3, 4], 10)
    index.let_go("one")
    index.drop(1000)
    assert index._roots == {}
    assert index._held == {}
