from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast
from unittest.mock import create_autospec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_server.access.limits import Caller, CallerLimits
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.page_index import PrefixIndex
from moa_server.engine.registry import KVPool
from moa_server.engine.stepper import SessionTensors
from moa_server.session.session import Session, SessionLimits
from moa_shared.errors import ContextLengthError, OverloadedError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask

from tests.support.skipping import examples

TOKENS = count()
PAGE, PAGE_NBYTES = 4, 10  # tokens of a page
NO_LIMITS = CallerLimits()
LISTENER = create_autospec(Listener, instance=True)


@dataclass
class Tensors:
    """All that the pool reads of a session's tensors."""

    nbytes: int


class Bench:
    def __init__(self, budget: int) -> None:
        self.released: list[LiveSession] = []
        self.dropped: list[int] = []
        self.prefixes: PrefixIndex[LiveSession] = PrefixIndex(PAGE, self.dropped.extend)
        self.pool = KVPool(budget, self.released.append, self.prefixes)

    def live(
        self, client: str = "a", *, held: int = 0, attached: bool = True, limits: CallerLimits = NO_LIMITS
    ) -> LiveSession:
        session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
        live = LiveSession(
            next(TOKENS).to_bytes(4, "big"),
            session,
            cast(SessionTensors, Tensors(held)),
            caller=Caller(client, key="k", limits=limits),
        )
        live.stream = Attachment(LISTENER if attached else None)
        return live

    def ask(self, live: LiveSession, nbytes: int) -> None:
        """An answer that may take so much in all."""
        live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1], AnswerSettings(), 0))
        self.pool.reserve(live, nbytes, PAGE_NBYTES)

    def read(self, live: LiveSession, text: Sequence[int]) -> None:
        """The session has read this text, and keeps its full pages."""
        self.prefixes.extend(live, live.caller.owner, text, PAGE_NBYTES)

    def find(self, live: LiveSession, text: Sequence[int]) -> None:
        """The session takes over what is kept of this text."""
        self.prefixes.hold(live, self.prefixes.find(live.caller.owner, text))

    def answered(self, client: str = "a", *, promised: int, held: int, attached: bool = True) -> LiveSession:
        """A session whose answer is over."""
        live = self.live(client, held=held, attached=attached)
        self.ask(live, promised)
        live.session.on_stop()
        return live


def test_answers_are_let_begin_as_far_as_the_budget_goes() -> None:
    bench = Bench(100)
    first, second = bench.live(), bench.live()
    bench.ask(first, 60)
    with pytest.raises(OverloadedError, match="bytes of keys and values of this server are all in"):
        bench.ask(second, 41)
    bench.pool.reserve(second, 40)
    assert bench.pool.promised == 100
    bench.pool.reserve(first, 60)  # the same again
    bench.pool.forget(first)
    assert bench.pool.promised == 40
    assert bench.released == []


def test_what_can_never_be_had_is_no_matter_of_time() -> None:
    bench = Bench(100)
    with pytest.raises(ContextLengthError, match="bytes of keys and values; there are"):
        bench.ask(bench.live(), 101)


def test_an_idle_session_gives_back_what_it_did_not_use_and_keeps_the_rest() -> None:
    bench = Bench(100)
    bench.answered(promised=80, held=10)
    bench.ask(bench.live(), 90)
    assert bench.released == []
    assert bench.pool.promised == 100


def test_ones_own_oldest_goes_first_and_detached_before_attached() -> None:
    bench = Bench(100)
    other = bench.answered("b", promised=20, held=20)
    gone = bench.answered("b", promised=20, held=20, attached=False)
    oldest = bench.answered(promised=20, held=20)
    newer = bench.answered(promised=20, held=20)
    bench.pool.reserve(oldest, 20)  # used again
    bench.ask(bench.live(), 90)
    assert bench.released == [newer, oldest, gone, other]


def test_a_forward_under_way_keeps_what_it_works_on() -> None:
    bench = Bench(100)
    stepping = bench.answered(promised=80, held=80)
    stepping.turn.stepping = True
    with pytest.raises(OverloadedError):
        bench.ask(bench.live(), 50)
    stepping.turn.stepping = False
    bench.ask(bench.live(), 50)
    assert bench.released == [stepping]


def test_an_answer_for_nobody_makes_room() -> None:
    bench = Bench(100)
    left = bench.live(attached=False)
    bench.ask(left, 80)
    bench.ask(bench.live(), 50)
    assert bench.released == [left]


def test_a_page_that_is_shared_counts_once() -> None:
    bench = Bench(100)
    first, second = bench.live(), bench.live()
    bench.ask(first, 60)
    bench.read(first, range(12))
    assert bench.pool.promised == 60
    bench.find(second, range(12))
    bench.ask(second, 70)  # 30 of them are there
    assert bench.pool.promised == 100
    bench.pool.forget(first)
    assert bench.pool.promised == 70
    bench.pool.forget(second)
    assert bench.pool.promised == bench.prefixes.spare_nbytes == 30


def test_pages_that_nobody_uses_go_before_anybody_loses_something() -> None:
    bench = Bench(100)
    gone = bench.live()
    bench.ask(gone, 30)
    bench.read(gone, range(12))
    bench.pool.forget(gone)
    bench.answered(promised=30, held=30)
    bench.ask(bench.live(), 55)
    assert bench.dropped == [3, 2]
    assert bench.released == []
    assert bench.pool.promised == 95


def test_the_pages_of_a_victim_go_as_far_as_they_must() -> None:
    bench = Bench(100)
    idle = bench.answered(promised=40, held=40)
    bench.read(idle, range(12))
    bench.ask(bench.live(), 85)
    assert bench.released == [idle]
    assert bench.dropped == [3, 2]
    assert bench.pool.promised == 95
    assert bench.prefixes.held(idle) == ()


def test_pages_that_an_answer_uses_are_no_victim_s_to_give() -> None:
    bench = Bench(100)
    idle, answering = bench.answered(promised=40, held=40), bench.live()
    bench.read(idle, range(12))
    bench.find(answering, range(12))
    bench.ask(answering, 50)
    with pytest.raises(OverloadedError):
        bench.ask(bench.live(), 55)
    assert not bench.released
    assert not bench.dropped
    bench.ask(bench.live(), 50)
    assert bench.released == [idle]
    assert bench.dropped == []


def test_who_was_refused_can_still_give_up_the_pages_it_found() -> None:
    bench = Bench(100)
    lender, refused = bench.live(), bench.live()
    bench.ask(lender, 90)
    bench.read(lender, range(12))
    bench.find(refused, range(12))
    with pytest.raises(OverloadedError):
        bench.ask(refused, 50)
    refused.session.on_stop()
    bench.pool.forget(lender)
    assert bench.prefixes.spare_nbytes == 0
    bench.ask(bench.live(), 100)
    assert bench.released == [refused]
    assert bench.dropped == [3, 2, 1]


@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_answer_begins_unless_all_promises_and_pages_fit(data: st.DataObject) -> None:
    """Five sessions find, ask, read, stop and end in any order."""
    bench = Bench(200)
    lives = [bench.live() for _ in range(5)]
    texts = st.integers(0, 15).map(lambda bits: [bits >> page & 1 for page in range(4) for _ in range(PAGE)])
    for _ in range(data.draw(st.integers(1, 25))):
        live, text = lives[data.draw(st.integers(0, 4))], data.draw(texts)
        bench.find(live, text)
        live.session.on_stop()
        try:
            bench.ask(live, 40 + data.draw(st.integers(0, 60)))
        except OverloadedError:
            live.session.on_stop()
        else:
            bench.read(live, text)
            assert len(bench.prefixes.held(live)) == 4
            assert bench.prefixes.nbytes <= bench.pool.promised <= bench.pool.budget
        held_nbytes = len(bench.prefixes.held(live)) * PAGE_NBYTES
        cast(Tensors, live.tensors).nbytes = held_nbytes + data.draw(st.integers(0, 5))
        if data.draw(st.booleans()):
            live.session.on_stop()
        if data.draw(st.integers(0, 3)) == 0:
            bench.pool.forget(live)
            lives[lives.index(live)] = bench.live()
        assert all(not bench.prefixes.held(each) for each in bench.released)
        for each in bench.released:
            cast(Tensors, each.tensors).nbytes = 0
        bench.released.clear()


def test_a_key_loses_bytes_of_its_own_idle_sessions_first_and_of_no_answer() -> None:
    bench = Bench(1000)
    limits = CallerLimits(kv_bytes=100)
    oldest, idle, first, second, other = (bench.live(owner, limits=limits) for owner in "aaaab")
    for live in (oldest, idle):
        bench.ask(live, 30)
        live.session.on_stop()
    bench.ask(first, 60)
    assert bench.released == [oldest]
    with pytest.raises(OverloadedError, match="bytes of keys and values of the key k are all in use"):
        bench.ask(second, 50)
    bench.ask(other, 100)
    assert bench.released == [oldest]
