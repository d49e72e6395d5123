"""How many sessions and streams there may be, who gives way for whom, and the pool of their keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast
from unittest.mock import Mock, create_autospec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_server.access.limits import Caller, CallerLimits
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.prefix_index import PrefixIndex, TextPage
from moa_server.engine.registry import KVPool, SessionRegistry
from moa_server.engine.stepper import SessionTensors
from moa_server.session.session import Session, SessionLimits
from moa_shared.errors import ContextLengthError, OverloadedError
from moa_shared.protocol.messages import AnswerSettings, Ask

from tests.support.counted import Clock
from tests.support.skipping import examples

TOKENS = count()
NO_LIMITS = CallerLimits()


@dataclass
class Tensors:
    """All that the pool reads of a session's tensors."""

    nbytes: int = 0


def new_session() -> LiveSession:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    return LiveSession(next(TOKENS).to_bytes(4, "big"), session, cast(SessionTensors, Tensors()))


def ask(live: LiveSession, tokens: int = 1) -> None:
    live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1] * tokens, AnswerSettings(), 0))


def stream() -> Attachment:
    return Attachment(create_autospec(Listener, instance=True))


# ---------------------------------------------------------------- sessions and streams


class Sessions:
    def __init__(self, limit: int = 100, stream_limit: int = 10) -> None:
        self.clock = Clock()
        self.closed: list[LiveSession] = []
        self.registry = SessionRegistry(limit, stream_limit, 10.0, new_session, self.clock, self.closed.append)

    def admit(
        self, client: str = "a", *, tokens: int = 3, answering: bool = False, limits: CallerLimits = NO_LIMITS
    ) -> LiveSession:
        """A session with a stream."""
        live = self.registry.new()
        if answering:
            ask(live, tokens)
        else:
            live.session.on_open([1] * tokens)
        self.registry.attach(live, Caller(client, key="k", limits=limits), stream())
        return live


def test_a_session_is_found_by_its_token() -> None:
    bench = Sessions()
    live = bench.admit()
    assert bench.registry.find(live.token, Caller()) is live
    assert bench.registry.find(b"another", Caller()) is None
    bench.registry.close(live)
    assert bench.registry.find(live.token, Caller()) is None
    assert live.closed
    assert bench.closed == [live]
    bench.registry.detach(live)
    bench.registry.detach(bench.admit(tokens=0))  # without any text there is nothing to keep
    assert (len(bench.registry), bench.registry.detached) == (0, 0)


def test_over_the_limit_the_session_detached_first_makes_room_and_none_that_is_attached() -> None:
    bench = Sessions(limit=2)
    first, second = bench.admit(), bench.admit()
    with pytest.raises(OverloadedError, match="sessions already, which is its limit"):
        bench.admit()
    bench.registry.detach(second)
    bench.clock.now = 1
    bench.registry.detach(first)
    third = bench.admit()
    assert second.closed
    assert bench.registry.live_sessions == (first, third)


def test_who_opens_many_sessions_loses_his_own() -> None:
    bench = Sessions(limit=4)
    honest = bench.admit("honest")
    bench.registry.detach(honest)
    for _ in range(20):
        bench.registry.detach(bench.admit("busy"))
    assert not honest.closed
    assert len(bench.registry) == 4
    bench.registry.detach(bench.admit("third"))
    assert not honest.closed


def test_over_the_limit_of_streams_ones_own_oldest_idle_one_ends() -> None:
    bench = Sessions(stream_limit=3)
    answering, oldest, newest = bench.admit(answering=True), bench.admit(), bench.admit()
    listener = cast(Mock, oldest.stream.listener)
    third = bench.admit()
    listener.on_displaced.assert_called_once_with()
    assert (len(bench.registry), bench.registry.detached) == (4, 1)
    assert not oldest.closed
    assert all(live.stream.listener is not None for live in (answering, newest, third))
    bench.registry.detach(newest)
    bench.registry.attach(oldest, Caller("a"), Attachment())
    assert (len(bench.registry), bench.registry.detached) == (4, 1)


def test_who_has_most_streams_gives_one_to_who_has_fewer_and_not_the_other_way_round() -> None:
    bench = Sessions(stream_limit=3)
    few, *many = bench.admit("few"), bench.admit("many"), bench.admit("many")
    bench.admit("another")
    assert many[0].stream.listener is None
    assert few.stream.listener is not None
    bench.admit("a third")  # an idle stream makes room for who has none
    assert few.stream.listener is None


def test_no_stream_that_answers_is_ended_and_who_keeps_some_busy_ends_none_of_others() -> None:
    bench = Sessions(stream_limit=3)
    few = bench.admit("few")
    for _ in range(2):
        bench.admit("busy", answering=True)
    with pytest.raises(OverloadedError, match="streams already, which is its limit"):
        bench.admit("busy")
    assert few.stream.listener is not None


def test_detached_sessions_expire() -> None:
    bench = Sessions()
    first, second = bench.admit(), bench.admit()
    bench.registry.detach(first)
    bench.clock.now = 5
    bench.registry.detach(second)
    bench.clock.now = 9.9
    assert bench.registry.expire() == 0
    bench.clock.now = 10
    assert bench.registry.expire() == 1
    assert (first.closed, second.closed) == (True, False)
    bench.clock.now = 15
    bench.admit()
    assert second.closed


def test_a_key_loses_idle_sessions_of_its_own_first_and_no_answer() -> None:
    bench = Sessions()
    limits = CallerLimits(sessions=3)
    answering, attached, waiting = (bench.admit("a", limits=limits, answering=each) for each in (True, False, False))
    listener = cast(Mock, attached.stream.listener)
    bench.registry.detach(waiting)
    other = bench.admit("b", limits=limits)
    more = [bench.admit("a", limits=limits, answering=True) for _ in range(2)]
    assert bench.closed == [waiting, attached]
    listener.on_displaced.assert_called_once_with()
    with pytest.raises(OverloadedError, match="sessions at once, and all have answers"):
        bench.admit("a", limits=limits)
    assert bench.registry.live_sessions == (answering, other, *more)


# ---------------------------------------------------------------- keys and values

PAGE, PAGE_NBYTES = 4, 10  # tokens of a page
LISTENER = create_autospec(Listener, instance=True)


class Pool:
    def __init__(self, budget: int = 100) -> None:
        self.released: list[LiveSession] = []
        self.dropped: list[TextPage] = []
        self.prefixes: PrefixIndex[LiveSession] = PrefixIndex(PAGE, self.dropped.extend)
        self.pool = KVPool(budget, self.released.append, self.prefixes)

    def live(
        self, client: str = "a", *, held: int = 0, attached: bool = True, limits: CallerLimits = NO_LIMITS
    ) -> LiveSession:
        live = new_session()
        cast(Tensors, live.tensors).nbytes = held
        live.caller = Caller(client, key="k", limits=limits)
        live.stream = Attachment(LISTENER if attached else None)
        return live

    def ask(self, live: LiveSession, nbytes: int) -> None:
        """An answer that may take so much in all."""
        ask(live)
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
    bench = Pool()
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
    with pytest.raises(ContextLengthError, match="bytes of keys and values; there are"):
        bench.ask(bench.live(), 101)  # which can never be had


def test_an_idle_session_gives_back_what_it_did_not_use_and_keeps_the_rest() -> None:
    bench = Pool()
    bench.answered(promised=80, held=10)
    bench.ask(bench.live(), 90)
    assert bench.released == []
    assert bench.pool.promised == 100


def test_ones_own_oldest_goes_first_and_detached_before_attached() -> None:
    bench = Pool()
    other = bench.answered("b", promised=20, held=20)
    gone = bench.answered("b", promised=20, held=20, attached=False)
    oldest = bench.answered(promised=20, held=20)
    newer = bench.answered(promised=20, held=20)
    bench.pool.reserve(oldest, 20)  # used again
    bench.ask(bench.live(), 90)
    assert bench.released == [newer, oldest, gone, other]


def test_a_forward_under_way_keeps_what_it_works_on() -> None:
    bench = Pool()
    stepping = bench.answered(promised=80, held=80)
    stepping.turn.stepping = True
    with pytest.raises(OverloadedError):
        bench.ask(bench.live(), 50)
    stepping.turn.stepping = False
    bench.ask(bench.live(), 50)
    assert bench.released == [stepping]


def test_an_answer_for_nobody_makes_room() -> None:
    bench = Pool()
    left = bench.live(attached=False)
    bench.ask(left, 80)
    bench.ask(bench.live(), 50)
    assert bench.released == [left]


def test_a_page_that_is_shared_counts_once() -> None:
    bench = Pool()
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
    bench = Pool()
    gone = bench.live()
    bench.ask(gone, 30)
    bench.read(gone, range(12))
    pages = [*bench.prefixes.held(gone)]
    bench.pool.forget(gone)
    bench.answered(promised=30, held=30)
    bench.ask(bench.live(), 55)
    assert bench.dropped == [pages[2], pages[1]]
    assert bench.released == []
    assert bench.pool.promised == 95


def test_the_pages_of_a_victim_go_as_far_as_they_must() -> None:
    bench = Pool()
    idle = bench.answered(promised=40, held=40)
    bench.read(idle, range(12))
    pages = [*bench.prefixes.held(idle)]
    bench.ask(bench.live(), 85)
    assert bench.released == [idle]
    assert bench.dropped == [pages[2], pages[1]]
    assert bench.pool.promised == 95
    assert bench.prefixes.held(idle) == ()


def test_pages_that_an_answer_uses_are_no_victim_s_to_give() -> None:
    bench = Pool()
    idle, answering = bench.answered(promised=40, held=40), bench.live()
    bench.read(idle, range(12))
    bench.find(answering, range(12))
    bench.ask(answering, 50)
    with pytest.raises(OverloadedError):
        bench.ask(bench.live(), 55)
    assert not bench.released
    bench.ask(bench.live(), 50)
    assert bench.released == [idle]
    assert bench.dropped == []


def test_who_was_refused_can_still_give_up_the_pages_it_found() -> None:
    bench = Pool()
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
    assert len(bench.dropped) == 3


@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_answer_begins_unless_all_promises_and_pages_fit(data: st.DataObject) -> None:
    """Five sessions find, ask, read, stop and end in any order."""
    bench = Pool(200)
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
    bench = Pool(1000)
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
