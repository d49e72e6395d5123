"""The inference thread: the only place where models run. Jobs in order, small urgent ones before forwards.

State: two queues under one lock, and when the running job started. Invariants: at most one job runs; what is submitted
after `stop` is dropped; a job that raises ends nothing but itself, or the session that it is for. The queues are
bounded by their callers: the engine keeps one forward in the queue, each stream one piece of coding, and each session
what its last forward or its end has to be done about pages.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

import structlog
from moa_shared.errors import InternalError, MoaError

from moa_server.engine.live_session import LiveSession, Observer

log = structlog.get_logger()

STOP_SECONDS = 5.0  # for the running job; one that hangs is abandoned


class RunningJob(NamedTuple):
    began: float  # on the thread's clock
    worked: float  # seconds of a processor that the thread has had in all


class InferenceThread:
    """Runs jobs one after another.

    `before`: called once on the thread before the first job (thread settings of torch).
    """

    def __init__(self, before: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic) -> None:
        self._before = before
        self._clock = clock
        self._urgent: deque[Callable[[], None]] = deque()
        self._forwards: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    @property
    def running(self) -> RunningJob | None:
        began, thread = self._began, self._thread.ident
        if began is None or thread is None:
            return None
        return RunningJob(began, time.clock_gettime(time.pthread_getcpuclockid(thread)))

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Callable[[], None], *, urgent: bool = False) -> None:
        """Queues a job. An error that it does not handle itself is logged."""
        with self._changed:
            if not self._stopping:
                (self._urgent if urgent else self._forwards).append(job)
                self._changed.notify()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Drops what is queued and waits up to `seconds` for the running job."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopping and not self._urgent and not self._forwards:
                self._changed.wait()
            return None if self._stopping else (self._urgent or self._forwards).popleft()

    def _run(self) -> None:
        self._before()
        while (job := self._next()) is not None:
            self._began = self._clock()
            try:
                job()
            except Exception as error:  # otherwise no session would ever be answered again
                log.error("job of the inference thread failed", exc_info=error)
            self._began = None


T = TypeVar("T")


class SessionJobs:
    """Jobs for sessions: what they give goes to the event loop, and what they raise ends their session.

    `on_lost`: called for each session that an error has ended.
    """

    def __init__(self, thread: InferenceThread, on_lost: Callable[[LiveSession], None], observer: Observer) -> None:
        self._thread = thread
        self._on_lost = on_lost
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    # ------------------------------------------------------------ on the event loop

    def run(self, job: Callable[[], None]) -> None:
        self._thread.submit(job, urgent=True)

    def run_for(self, live: LiveSession, job: Callable[[], None]) -> None:
        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 (whatever it raises ends only this session)
                self.post_loss(live, error)

        self.run(run)

    def result_of(self, job: Callable[[], T], *, urgent: bool) -> asyncio.Future[T]:
        """What a job gives, or the error with which it fails; cancelled before it has begun, it does not run."""
        done: Future[T] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(job())
                except Exception as error:  # noqa: BLE001 (whatever it is, the one who waits learns of it)
                    done.set_exception(public_error(error))

        self._thread.submit(run, urgent=urgent)
        return asyncio.wrap_future(done)

    def lose(self, live: LiveSession, error: Exception) -> None:
        """Ends a session; its client learns why, the log has the details."""
        if live.closed:
            return
        self._observer.on_lost()
        log.error("session failed", session=live.number, exc_info=error)
        listener = live.stream.listener
        live.account.end_trace("failed", type(error).__name__)
        live.close()
        if listener is not None:
            listener.on_failure(public_error(error))
        self._on_lost(live)

    # ------------------------------------------------------------ on the inference thread

    def post(self, reply: Callable[[], None]) -> None:
        if self._loop is None:
            raise InternalError("The engine ran a job before it was started.")
        self._loop.call_soon_threadsafe(reply)

    def post_loss(self, live: LiveSession, error: Exception) -> None:
        self.post(partial(self.lose, live, error))


def public_error(error: Exception) -> MoaError:
    """The error that the client sees; details stay in the log."""
    if isinstance(error, MoaError):
        return error
    public = InternalError(f"The server failed in this session ({type(error).__name__}).")
    public.__cause__ = error
    return public
