"""The inference thread: the only place where models run. Jobs in order, small urgent ones before forwards.

State: two queues under one lock. Invariant: at most one job runs; what is submitted after `stop` is dropped. The queues
are bounded by their callers: the engine keeps one forward in the queue, each stream one piece of coding.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class InferenceThread:
    """Runs jobs one after another.

    Args:
        before: called once on the thread before the first job (thread settings of torch).
    """

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self._urgent: deque[Callable[[], None]] = deque()
        self._forwards: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Callable[[], None], *, urgent: bool = False) -> None:
        """Queues a job, which must not raise."""
        with self._changed:
            if not self._stopping:
                (self._urgent if urgent else self._forwards).append(job)
                self._changed.notify()

    def stop(self) -> None:
        """Drops what is queued and waits for the job that runs."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopping and not self._urgent and not self._forwards:
                self._changed.wait()
            if self._stopping:
                return None
            return (self._urgent or self._forwards).popleft()

    def _run(self) -> None:
        self._before()
        while (job := self._next()) is not None:
            job()
