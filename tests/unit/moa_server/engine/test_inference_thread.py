"""Jobs of the inference thread, and sessions that one of them has lost."""

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest
from moa_server.engine.inference_thread import InferenceThread, SessionJobs
from moa_server.engine.live_session import Attachment, Listener, LiveSession, Observer
from moa_shared.errors import InternalError, TokenRangeError


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
