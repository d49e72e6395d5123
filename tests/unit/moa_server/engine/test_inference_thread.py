"""Jobs of the inference thread, and sessions that one of them has lost."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest
from moa_server.engine.inference_thread import InferenceThread, SessionJobs, SessionLosses, public_error
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.observer import Observer
from moa_shared.errors import InternalError, TokenRangeError


@pytest.fixture
def thread() -> Iterator[InferenceThread]:
    thread = InferenceThread()
    yield thread
    thread.stop()


def test_small_jobs_go_before_forwards(thread: InferenceThread) -> None:
    order: list[str] = []
    done = threading.Event()
    for name in ("forward 1", "forward 2"):
        thread.submit(partial(order.append, name))
    for name in ("coding 1", "coding 2"):
        thread.submit(partial(order.append, name), urgent=True)
    thread.submit(done.set)
    thread.start()
    assert done.wait(10)
    assert order == ["coding 1", "coding 2", "forward 1", "forward 2"]


def test_a_job_that_raises_ends_nothing_but_itself(thread: InferenceThread) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    done = threading.Event()
    thread.start()
    for urgent in (True, False):
        thread.submit(fail, urgent=urgent)
    thread.submit(done.set)
    assert done.wait(10)
    thread.submit(done.clear)


def test_stop_waits_for_the_job_that_runs_and_drops_the_rest(thread: InferenceThread) -> None:
    started, release = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow() -> None:
        started.set()
        release.wait(10)
        ran.append("slow")

    thread.submit(slow)
    thread.submit(lambda: ran.append("dropped"))
    thread.start()
    assert started.wait(10)
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    release.set()
    stopping.join(10)
    thread.submit(lambda: ran.append("too late"))
    assert ran in (["slow"], ["slow", "dropped"])  # which came first, stop or the second job, is open
    assert "too late" not in ran


def test_a_thread_that_was_stopped_before_it_started_runs_nothing(thread: InferenceThread) -> None:
    ran: list[str] = []
    thread.submit(partial(ran.append, "forward"))
    thread.stop()
    thread.start()
    thread.stop()
    assert ran == []
    assert not thread._thread.is_alive()


def test_a_job_that_is_withdrawn_does_not_run(thread: InferenceThread) -> None:
    ran: list[str] = []
    done = threading.Event()
    ticket = thread.submit(lambda: ran.append("withdrawn"), urgent=True)
    thread.submit(lambda: ran.append("kept"), urgent=True)
    thread.submit(done.set)
    thread.withdraw(ticket)
    thread.withdraw(ticket)
    thread.start()
    assert done.wait(10)
    assert ran == ["kept"]


def test_what_a_job_has_worked_is_known_and_one_that_hangs_is_abandoned() -> None:
    now = [5.0]
    thread = InferenceThread(clock=lambda: now[0])
    started, release = threading.Event(), threading.Event()

    def hang() -> None:
        began = time.thread_time()
        while time.thread_time() < began + 0.05:
            pass
        started.set()
        release.wait(10)

    assert thread.running is None
    thread.submit(hang)
    thread.start()
    assert started.wait(10)
    now[0] = 12.0
    running = thread.running
    assert running is not None
    assert running.began == 5.0
    assert running.worked >= 0.05
    thread.stop(seconds=0.01)
    release.set()
    thread.stop()
    assert thread.running is None


def test_a_job_before_the_start_is_a_defect() -> None:
    jobs = SessionJobs(create_autospec(InferenceThread, instance=True), create_autospec(SessionLosses, instance=True))
    with pytest.raises(InternalError):
        jobs.post(print)


def test_a_session_is_lost_once_and_its_stream_learns_why() -> None:
    on_lost, observer = Mock(), create_autospec(Observer, instance=True)
    listener = create_autospec(Listener, instance=True)
    live = LiveSession(b"", cast(Any, None), cast(Any, None), stream=Attachment(listener))
    error = TokenRangeError("token 99")
    losses = SessionLosses(on_lost, observer)
    losses.lose(live, error)
    losses.lose(live, RuntimeError("again"))
    listener.on_failure.assert_called_once_with(error)
    on_lost.assert_called_once_with(live)
    observer.on_lost.assert_called_once_with()
    assert live.closed
    assert live.stream.listener is None


def test_details_of_a_defect_stay_in_the_log() -> None:
    error = public_error(RuntimeError("the password is 1234"))
    assert isinstance(error, InternalError)
    assert "1234" not in str(error)
