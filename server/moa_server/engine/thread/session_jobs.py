"""Jobs of sessions on the inference thread, and what follows from them on the event loop.

State: the event loop. Invariant: a session's job that fails ends that session, and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from moa_shared.errors import InternalError

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.losses import SessionLosses, public_error
from moa_server.engine.thread.inference_thread import InferenceThread

T = TypeVar("T")


class SessionJobs:
    """Runs jobs between forwards.

    Args:
        losses: ends a session whose job fails.
    """

    def __init__(self, thread: InferenceThread, losses: SessionLosses) -> None:
        self._thread = thread
        self._losses = losses
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Starts the inference thread; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    # ------------------------------------------------------------ on the event loop

    def run(self, job: Callable[[], None]) -> int:
        """Has a job run before the next forward; returns its ticket."""
        return self._thread.submit(job, urgent=True)

    def run_for(self, live: LiveSession, job: Callable[[], None]) -> None:
        """As `run`; if the job fails, its session is lost."""
        self.run(partial(self._run_or_lose, live, job))

    def result_of(self, job: Callable[[], T], *, urgent: bool) -> asyncio.Future[T]:
        """What a job gives, or the error with which it fails; cancelled before it has begun, it does not run.

        Args:
            urgent: it runs before the next forward; otherwise it takes its turn among them.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 (whatever it is, the one who waits learns of it)
                self.post(partial(_fail, future, error))
            else:
                self.post(partial(_give, future, result))

        ticket = self._thread.submit(run, urgent=urgent)
        future.add_done_callback(lambda done: self._thread.withdraw(ticket) if done.cancelled() else None)
        return future

    # ------------------------------------------------------------ on the inference thread

    def post(self, reply: Callable[[], None]) -> None:
        """Calls back on the event loop."""
        if self._loop is None:
            raise InternalError("The engine ran a job before it was started.")
        self._loop.call_soon_threadsafe(reply)

    def post_loss(self, live: LiveSession, error: Exception) -> None:
        """Ends a session that has failed, on the event loop."""
        self.post(partial(self._losses.lose, live, error))

    def _run_or_lose(self, live: LiveSession, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 (whatever it raises ends only this session)
            self.post_loss(live, error)


def _give(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(public_error(error))
