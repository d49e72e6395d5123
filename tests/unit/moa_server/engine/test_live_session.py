"""A session's stream and account, what the log says that it has used, and jobs of the inference thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest
import structlog
from moa_server.access.limits import Caller, TokenMeter
from moa_server.engine.inference_thread import InferenceThread, SessionJobs
from moa_server.engine.live_session import Account, Attachment, Listener, LiveSession, Observer
from moa_server.session.session import Session, SessionLimits
from moa_shared.errors import InternalError, RateLimitError, TokenRangeError
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish


def test_a_session_is_idle_without_an_answer_for_a_client_and_without_a_forward() -> None:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    live = LiveSession(b"", session, cast(Any, None))
    live.attach(Caller("a"), Attachment(create_autospec(Listener, instance=True)))
    assert live.is_idle
    live.session.on_ask(Ask(1, 0, live.session.hashes.at(0), [1], AnswerSettings(), 0))
    assert not live.is_idle
    live.detach()
    assert (live.caller.owner, live.stream.listener, live.closed) == ("a", None, False)
    assert live.is_idle  # it runs ahead, and may be stopped for others
    live.turn.stepping = True
    assert not live.is_idle


def test_an_answer_pays_for_what_was_computed_and_pauses_when_its_limit_is_used_up() -> None:
    meter = create_autospec(TokenMeter, instance=True)
    meter.refusal.return_value = RateLimitError("too many")
    account = Account()
    account.let_in(meter)
    meter.begin.assert_called_once_with()
    assert account.pay(5, 0, answering=True) is None  # a part of a prompt is read to its end
    assert account.pay(0, 1, answering=True) is meter.refusal.return_value
    assert [call.args for call in meter.read.call_args_list] == [(5,), (0,)]
    assert [call.args for call in meter.write.call_args_list] == [(0,), (1,)]


def test_an_answer_that_has_ended_or_another_meter_gives_back_what_was_not_used() -> None:
    first, second = (create_autospec(TokenMeter, instance=True) for _ in range(2))
    account = Account()
    account.let_in(first)
    account.let_in(second)
    first.end.assert_called_once_with()
    assert account.pay(0, 3, answering=False) is None
    second.end.assert_called_once_with()


def test_each_token_is_counted_once() -> None:
    account = Account(began=100.0)
    account.on_ask(1, 10)
    account.on_written(4, 0, 0, Finish.UNFINISHED)
    account.on_written(1, 0, 0, Finish.MAX_TOKENS)
    account.on_ask(2, 10 + 5 + 7)  # the next question, behind the answer
    account.on_ask(3, 15)  # seven tokens were thrown away, and none is new
    account.on_ask(4, 20)
    assert account.facts(Caller("key 0", "ipv4:10.0.0.1:5", "laptop", is_proven=True), 103.0) == {
        "key": "laptop",
        "peer": "ipv4:10.0.0.1:5",
        "questions": 4,
        "tokens_in": 22,
        "tokens_out": 5,
        "finish": "unfinished",
        "seconds": 3.0,
    }


def test_an_observer_s_defect_costs_no_answer_and_is_logged_once() -> None:
    class Defective(Observer):
        def on_forward(self, *_: object) -> None:
            raise ZeroDivisionError

        def on_call(self, method: str) -> None:
            raise ZeroDivisionError

    defective = Defective()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            defective.on_forward()
            defective.on_call("Embed")
    assert [each["seen"] for each in logs] == ["on_forward", "on_call"]


@pytest.fixture
def thread() -> Iterator[InferenceThread]:
    thread = InferenceThread()
    yield thread
    thread.stop()


def test_small_jobs_go_before_forwards(thread: InferenceThread) -> None:
    order: list[str] = []
    done = threading.Event()
    thread.submit(cast(Any, lambda: 1 // 0))  # which ends nothing but itself
    for name in ("forward 1", "forward 2"):
        thread.submit(partial(order.append, name))
    for name in ("coding 1", "coding 2"):
        thread.submit(partial(order.append, name), urgent=True)
    thread.submit(done.set)
    thread.start()
    assert done.wait(60)
    assert order == ["coding 1", "coding 2", "forward 1", "forward 2"]


def test_stop_waits_for_the_job_that_runs_and_drops_the_rest(thread: InferenceThread) -> None:
    started, release = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow() -> None:
        started.set()
        release.wait(60)
        ran.append("slow")

    thread.submit(slow)
    thread.submit(lambda: ran.append("dropped"))
    thread.start()
    assert started.wait(60)
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    release.set()
    stopping.join(60)
    thread.submit(lambda: ran.append("too late"))
    assert ran in (["slow"], ["slow", "dropped"])  # which came first, stop or the second job, is open
    assert "too late" not in ran


def test_what_a_job_has_worked_is_known_and_one_that_hangs_is_abandoned() -> None:
    now = [5.0]
    thread = InferenceThread(clock=lambda: now[0])
    started, release = threading.Event(), threading.Event()

    def hang() -> None:
        began = time.thread_time()
        while time.thread_time() < began + 0.05:
            pass
        started.set()
        release.wait(60)

    assert thread.running is None
    thread.submit(hang)
    thread.start()
    assert started.wait(60)
    now[0] = 12.0
    running = thread.running
    assert running is not None
    assert running.began == 5.0
    assert running.worked >= 0.05
    thread.stop(seconds=0.01)
    release.set()
    thread.stop()
    assert thread.running is None


async def test_the_loop_gets_what_jobs_give_and_one_that_is_cancelled_does_not_run(thread: InferenceThread) -> None:
    ran: list[str] = []
    jobs = SessionJobs(thread, Mock(), Observer())
    cancelled = jobs.result_of(lambda: ran.append("cancelled"), urgent=True)
    cancelled.cancel()
    await asyncio.sleep(0)  # its turn to tell the thread
    given, failed = (jobs.result_of(job, urgent=False) for job in (lambda: 7, lambda: 1 // 0))
    jobs.start()
    assert await given == 7
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        await failed
    assert ran == []


def test_a_session_is_lost_once_and_its_stream_learns_why(thread: InferenceThread) -> None:
    on_lost, observer = Mock(), create_autospec(Observer, instance=True)
    listener = create_autospec(Listener, instance=True)
    live = LiveSession(b"", cast(Any, None), cast(Any, None), stream=Attachment(listener))
    error = TokenRangeError("token 99")
    jobs = SessionJobs(thread, on_lost, observer)
    jobs.lose(live, error)
    jobs.lose(live, RuntimeError("again"))
    listener.on_failure.assert_called_once_with(error)
    on_lost.assert_called_once_with(live)
    observer.on_lost.assert_called_once_with()
    assert live.closed
    assert live.stream.listener is None
