from itertools import count
from typing import cast
from unittest.mock import Mock, create_autospec

import pytest
from moa_server.access.limits import Caller, CallerLimits
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.registry import SessionRegistry
from moa_server.engine.stepper import SessionTensors
from moa_server.session.session import Session, SessionLimits, SessionPhase
from moa_shared.errors import OverloadedError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask

from tests.support.counted import Clock

NO_LIMITS = CallerLimits()


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Bench:
    def __init__(self, clock: Clock, limit: int, stream_limit: int, detached_seconds: float) -> None:
        numbers = count()
        self.closed: list[LiveSession] = []
        self.registry = SessionRegistry(
            limit,
            stream_limit,
            detached_seconds,
            self._make_live_session,
            lambda size: next(numbers).to_bytes(size, "big"),
            clock,
            self.closed.append,
        )

    @staticmethod
    def _make_live_session(token: bytes) -> LiveSession:
        session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
        return LiveSession(token, session, create_autospec(SessionTensors))

    def admit(
        self, client: str = "a", *, tokens: int = 3, answering: bool = False, limits: CallerLimits = NO_LIMITS
    ) -> LiveSession:
        """A session with a stream."""
        live = self.registry.new()
        if answering:
            live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1] * tokens, AnswerSettings(), 0))
        else:
            live.session.on_open([1] * tokens)
        stream = Attachment(create_autospec(Listener, instance=True))
        self.registry.attach(live, Caller(client, key="k", limits=limits), stream)
        return live


def make_bench(
    clock: Clock,
    limit: int = 2,
    stream_limit: int = 10,
    detached_seconds: float = 10.0,
) -> tuple[Bench, SessionRegistry]:
    bench = Bench(clock, limit, stream_limit, detached_seconds)
    return bench, bench.registry


def test_a_session_is_found_by_its_token(clock: Clock) -> None:
    bench, registry = make_bench(clock)
    live = bench.admit()
    assert registry.find(live.token, Caller()) is live
    assert registry.find(b"another", Caller()) is None
    registry.close(live)
    assert registry.find(live.token, Caller()) is None
    assert live.closed
    assert bench.closed == [live]


def test_over_the_limit_nobody_attached_is_thrown_out(clock: Clock) -> None:
    bench, registry = make_bench(clock)
    live_sessions = [bench.admit(), bench.admit()]
    with pytest.raises(OverloadedError, match="sessions already, which is its limit"):
        bench.admit()
    assert registry.live_sessions == tuple(live_sessions)


def test_the_session_detached_first_makes_room(clock: Clock) -> None:
    bench, registry = make_bench(clock)
    first, second = bench.admit(), bench.admit()
    registry.detach(second)
    clock.now = 1
    registry.detach(first)
    third = bench.admit()
    assert second.closed
    assert registry.live_sessions == (first, third)


def test_who_opens_many_sessions_loses_his_own(clock: Clock) -> None:
    bench, registry = make_bench(clock, limit=4)
    honest = bench.admit("honest")
    registry.detach(honest)
    for _ in range(20):
        registry.detach(bench.admit("busy"))
    assert not honest.closed
    assert len(registry) == 4
    registry.detach(bench.admit("third"))
    assert not honest.closed


def test_a_session_without_any_text_is_not_kept(clock: Clock) -> None:
    bench, registry = make_bench(clock)
    live = bench.admit(tokens=0)
    registry.detach(live)
    assert live.closed


def test_over_the_limit_of_streams_ones_own_oldest_idle_one_ends(clock: Clock) -> None:
    bench, registry = make_bench(clock, limit=100, stream_limit=3)
    answering, oldest, newest = bench.admit(answering=True), bench.admit(), bench.admit()
    listener = oldest.stream.listener
    third = bench.admit()
    assert listener is not None
    listener.on_displaced.assert_called_once_with()  # type: ignore[attr-defined]
    assert (len(registry), registry.detached) == (4, 1)
    assert not oldest.closed
    assert all(live.stream.listener is not None for live in (answering, newest, third))
    registry.detach(newest)
    registry.attach(oldest, Caller("a"), Attachment())
    assert (len(registry), registry.detached) == (4, 1)


def test_who_has_most_streams_gives_one_to_who_has_fewer_and_not_the_other_way_round(clock: Clock) -> None:
    bench, _ = make_bench(clock, limit=100, stream_limit=3)
    few, *many = bench.admit("few"), bench.admit("many"), bench.admit("many")
    bench.admit("another")
    assert many[0].stream.listener is None
    assert few.stream.listener is not None
    bench.admit("a third")  # an idle stream makes room for who has none
    assert few.stream.listener is None


def test_who_keeps_streams_busy_does_not_end_those_of_others(clock: Clock) -> None:
    bench, _ = make_bench(clock, limit=100, stream_limit=3)
    few = bench.admit("few")
    for _ in range(2):
        bench.admit("busy", answering=True)
    with pytest.raises(OverloadedError, match="streams already, which is its limit"):
        bench.admit("busy")
    assert few.stream.listener is not None


def test_streams_that_answer_are_not_ended(clock: Clock) -> None:
    bench, _ = make_bench(clock, limit=100, stream_limit=2)
    live_sessions = [bench.admit(answering=True) for _ in range(2)]
    with pytest.raises(OverloadedError):
        bench.admit()
    assert all(live.session.phase is SessionPhase.ANSWERING for live in live_sessions)


def test_detached_sessions_expire(clock: Clock) -> None:
    bench, registry = make_bench(clock)
    first, second = bench.admit(), bench.admit()
    registry.detach(first)
    clock.now = 5
    registry.detach(second)
    clock.now = 9.9
    assert registry.expire() == 0
    clock.now = 10
    assert registry.expire() == 1
    assert (first.closed, second.closed) == (True, False)
    clock.now = 15
    bench.admit()
    assert second.closed
    assert len(registry) == 1


def test_a_closed_session_is_not_kept(clock: Clock) -> None:
    bench, registry = make_bench(clock)
    live = bench.admit()
    registry.close(live)
    registry.detach(live)
    assert registry.detached == 0


def test_a_key_loses_idle_sessions_of_its_own_first_and_no_answer(clock: Clock) -> None:
    bench, registry = make_bench(clock, limit=10)
    limits = CallerLimits(sessions=3)
    answering, attached, waiting = (bench.admit("a", limits=limits, answering=each) for each in (True, False, False))
    listener = attached.stream.listener
    registry.detach(waiting)
    other = bench.admit("b", limits=limits)
    more = [bench.admit("a", limits=limits, answering=True) for _ in range(2)]
    assert bench.closed == [waiting, attached]
    cast(Mock, listener).on_displaced.assert_called_once_with()
    with pytest.raises(OverloadedError, match="sessions at once, and all have answers"):
        bench.admit("a", limits=limits)
    assert registry.live_sessions == (answering, other, *more)
