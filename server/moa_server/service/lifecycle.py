"""The life of a server: which calls are open, and how they end when it goes away.

State: the open calls and the streams whose Open has not come; whether the server drains or its inference hangs, and the
job that was running at the last look. Invariant: a server that drains takes nothing new, and its calls are those that
still answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from moa_shared.errors import AuthenticationError, UnavailableError

from moa_server.access.authentication import Gate
from moa_server.access.caller import Caller
from moa_server.engine.inference_thread import RunningJob
from moa_server.fleet.watch import Membership

LAST_WORD_SECONDS = 5.0  # for a client to read a GoAway and end its stream: a few round trips, or a busy device's pause
MOST_UNOPENED = 64  # streams whose Open has not come; an honest one comes with its stream
SIGN_SECONDS = 0.001  # of a processor between two looks: a sign of life
LOOK_SECONDS = 2.0  # of a pause between two looks count: in a longer one this process did not run either


class OpenCall(Protocol):
    """An open call, notified when the server goes away."""

    def drain(self) -> None:
        """Ends the call, at once or after its running answer, and leaves."""

    def end_answer(self) -> None:
        """Ends the running answer where it is, and then the call."""

    def end_idle(self, since: float) -> None:
        """Ends the call if nothing was asked on it since then."""

    @property
    def caller(self) -> Caller:
        """The one who called."""

    def end_refused(self, refusal: AuthenticationError) -> None:
        """Ends the call: its caller has lost access."""


class Unopened(Protocol):
    """A stream whose Open has not come."""

    def give_up(self) -> None:
        """Ends the stream: others need its place."""


class Lifecycle:
    """The open calls of a server, and whether it takes new ones.

    Args:
        hang_seconds: a forward hangs that is stuck for longer.
        idle_seconds: a call on which nothing is asked for so long is ended; 0: never.
        clock: seconds, monotonic.

    Attributes:
        fleet: the servers that clients may go to instead.
        stuck_seconds: for how long the running job has had no processor, or, if that is more, how much of one it has
            used: neither is much on a machine that is only busy, whose time goes to other programs.
    """

    def __init__(self, hang_seconds: float, idle_seconds: float, clock: Callable[[], float]) -> None:
        self.fleet = Membership()
        self.draining = False
        self.hangs = False
        self.stuck_seconds = 0.0
        self._hang_seconds = hang_seconds
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._job: RunningJob | None = None  # as it was first looked at
        self._worked = self._still_seconds = self._looked_at = 0.0
        self._calls: set[OpenCall] = set()
        self._empty = asyncio.Event()
        self._unopened: dict[Unopened, None] = {}  # oldest first

    @property
    def calls(self) -> int:
        """How many conversations and answers have a call open."""
        return len(self._calls)

    # ------------------------------------------------------------ calls

    def check_open(self) -> None:
        """Raises UnavailableError if the server is going away, or its inference hangs."""
        if self.hangs:
            raise UnavailableError("The server's model does not answer.", hint="Restart the server.")
        if self.draining:
            raise self.leaving()

    def leaving(self) -> UnavailableError:
        """The refusal of a client that comes while the server drains."""
        error = UnavailableError("The server is shutting down.", hint="Connect to another one, or try again later.")
        error.servers = self.fleet.names()
        return error

    @contextmanager
    def opening(self, stream: Unopened) -> Iterator[None]:
        """Holds one of MOST_UNOPENED places while a stream waits for its Open; the oldest makes room for a new one."""
        self._unopened[stream] = None
        if len(self._unopened) > MOST_UNOPENED:
            oldest = next(iter(self._unopened))
            del self._unopened[oldest]
            oldest.give_up()
        try:
            yield
        finally:
            self._unopened.pop(stream, None)

    def enter(self, call: OpenCall) -> None:
        """Registers a call to be notified when the server goes away."""
        self._calls.add(call)

    def leave(self, call: OpenCall) -> None:
        """Removes a call that has ended or was notified."""
        self._calls.discard(call)
        if self.draining and not self._calls:
            self._empty.set()

    # ------------------------------------------------------------ their end

    def watch(self, job: RunningJob | None) -> bool:
        """Looks at the job of the inference thread; returns whether it is news that it hangs, or hangs no more."""
        passed, self._looked_at = self._clock() - self._looked_at, self._clock()
        if job is None or self._job is None or job.began != self._job.began:
            self._job, self._still_seconds, self.stuck_seconds = job, 0.0, 0.0
        else:
            has_worked = job.worked - self._worked >= SIGN_SECONDS
            self._still_seconds = 0.0 if has_worked else self._still_seconds + min(passed, LOOK_SECONDS)
            self.stuck_seconds = max(self._still_seconds, job.worked - self._job.worked)
        self._worked = job.worked if job is not None else 0.0
        before, self.hangs = self.hangs, self.stuck_seconds > self._hang_seconds
        return self.hangs is not before

    def end_idle(self) -> None:
        """Ends the calls on which nothing was asked for too long."""
        if self._idle_seconds:
            since = self._clock() - self._idle_seconds
            for call in tuple(self._calls):
                call.end_idle(since)

    def end_refused(self, gate: Gate) -> None:
        """Ends the calls of callers whose keys are no longer in force."""
        for call in tuple(self._calls):
            if (refusal := gate.refusal(call.caller)) is not None:
                call.end_refused(refusal)

    def drain(self) -> None:
        """Accepts nothing new; calls end with their running answers."""
        self.draining = True
        if not self._calls:
            self._empty.set()
        for call in tuple(self._calls):
            call.drain()

    async def drained(self) -> None:
        """Waits until every call has been notified."""
        await self._empty.wait()

    def end_answers(self) -> None:
        """Ends all running answers."""
        for call in tuple(self._calls):
            call.end_answer()
