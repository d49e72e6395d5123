from __future__ import annotations

from itertools import count
from unittest.mock import create_autospec

import pytest
from inline_snapshot import snapshot
from moa_server.engine.kv_pool import KVPool
from moa_server.engine.live_session import Listener, LiveSession
from moa_server.engine.stepper import SessionTensors
from moa_server.session.session import Session, SessionLimits
from moa_shared.errors import ContextLengthError, OverloadedError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask

from tests.support.messages import raises

TOKENS = count()


class Bench:
    def __init__(self, budget: int) -> None:
        self.released: list[LiveSession] = []
        self.pool = KVPool(budget, self.released.append)

    def live(self, client: str = "a", *, held: int = 0, attached: bool = True) -> LiveSession:
        session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
        tensors = create_autospec(SessionTensors, instance=True)
        tensors.nbytes = held
        live = LiveSession(next(TOKENS).to_bytes(4, "big"), session, tensors, client=client)
        live.listener = create_autospec(Listener, instance=True) if attached else None
        return live

    def ask(self, live: LiveSession, nbytes: int) -> None:
        live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1], AnswerSettings(), 0))
        self.pool.reserve(live, nbytes)

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
    with raises(
        OverloadedError,
        snapshot("The 100 bytes of keys and values of this server are all in use. Try again in a few seconds."),
    ):
        bench.ask(second, 41)
    bench.pool.reserve(second, 40)
    assert bench.pool.promised == 100
    bench.pool.reserve(first, 60)  # the same again
    bench.pool.forget(first)
    assert bench.pool.promised == 40
    assert bench.released == []


def test_what_can_never_be_had_is_no_matter_of_time() -> None:
    bench = Bench(100)
    with raises(
        ContextLengthError,
        snapshot(
            "The answer may take 101 bytes of keys and values; there are 100 bytes for all. Ask for fewer tokens, shorten the conversation, or raise the server's --kv-bytes."
        ),
    ):
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


def test_nobody_loses_anything_for_what_is_refused_all_the_same() -> None:
    bench = Bench(100)
    bench.answered(promised=20, held=20)
    bench.ask(bench.live(), 60)
    with pytest.raises(OverloadedError):
        bench.ask(bench.live(), 50)
    assert bench.released == []


def test_a_forward_under_way_keeps_what_it_works_on() -> None:
    bench = Bench(100)
    stepping = bench.answered(promised=80, held=80)
    stepping.stepping = True
    with pytest.raises(OverloadedError):
        bench.ask(bench.live(), 50)
    stepping.stepping = False
    bench.ask(bench.live(), 50)
    assert bench.released == [stepping]


def test_an_answer_for_nobody_makes_room() -> None:
    bench = Bench(100)
    left = bench.live(attached=False)
    bench.ask(left, 80)
    bench.ask(bench.live(), 50)
    assert bench.released == [left]
