"""The inference thread: the only place where models run. Jobs in order, small urgent ones before forwards.

State: two queues under one lock, and when the running job started. Invariants: at most one job runs; what is submitted
after `stop` is dropped; a job that raises ends nothing but itself. The queues are bounded by their callers: the engine
keeps one forward in the queue, each stream one piece of coding, which it withdraws when it is no longer needed, and
each session what its last forward or its end has to be done about pages.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import structlog

log = structlog.get_logger()

STOP_SECONDS = 5.0  # for the running job; one that hangs is abandoned


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job under way.

    Args:
        began: when, on the thread's clock; `worked`: seconds of a processor that the thread has had in all.
    """

    began: float
    worked: float


class InferenceThread:
    """Runs jobs one after another.

    Args:
        before: called once on the thread before the first job (thread settings of torch).
        clock: seconds, monotonic.
    """

    def __init__(self, before: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic) -> None:
        self._before = before
        self._clock = clock
        self._urgent: OrderedDict[int, Callable[[], None]] = OrderedDict()
        self._forwards: OrderedDict[int, Callable[[], None]] = OrderedDict()
        self._tickets = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    @property
    def running(self) -> RunningJob | None:
        """The running job; None: none runs."""
        began, thread = self._began, self._thread.ident
        if began is None or thread is None:
            return None
        return RunningJob(began, time.clock_gettime(time.pthread_getcpuclockid(thread)))

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Callable[[], None], *, urgent: bool = False) -> int:
        """Queues a job; returns its ticket. An error that it does not handle itself is logged."""
        with self._changed:
            ticket = next(self._tickets)
            if not self._stopping:
                (self._urgent if urgent else self._forwards)[ticket] = job
                self._changed.notify()
            return ticket

    def withdraw(self, ticket: int) -> None:
        """Removes a job that has not started."""
        with self._changed:
            self._urgent.pop(ticket, None)
            self._forwards.pop(ticket, None)

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
            if self._stopping:
                return None
            _, job = (self._urgent or self._forwards).popitem(last=False)
            return job

    def _run(self) -> None:
        self._before()
        while (job := self._next()) is not None:
            self._began = self._clock()
            try:
                job()
            except Exception as error:  # otherwise no session would ever be answered again
                log.error("job of the inference thread failed", exc_info=error)
            self._began = None
