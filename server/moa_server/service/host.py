"""The parts of a server, put together: what it serves, whom it lets in, which calls are open, and how it ends.

State: the open calls and the streams whose Open has not come; whether the server drains or its inference hangs, and the
job that was running at the last look. Invariant: a server that drains takes nothing new, and its calls are those that
still answer.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from moa_shared.errors import AuthenticationError, UnavailableError

from moa_server.access.keys import Gate
from moa_server.access.limits import Caller
from moa_server.engine.inference_thread import InferenceThread, RunningJob
from moa_server.engine.live_session import Observer
from moa_server.engine.stepper import Stepper
from moa_server.fleet import Membership
from moa_server.service.admission import Admission
from moa_server.service.fetch import DrafterFiles
from moa_server.service.services import Served, Services
from moa_server.settings import ServerSettings

LAST_WORD_SECONDS = 5.0  # for a client to read a GoAway and end its stream: a few round trips, or a busy device's pause
MOST_UNOPENED = 64  # streams whose Open has not come; an honest one comes with its stream, on a busy machine later
SIGN_SECONDS = 0.001  # of a processor between two looks: a sign of life
LOOK_SECONDS = 2.0  # of a pause between two looks count: in a longer one this process did not run either


class OpenCall(ABC):
    """An open call, notified when the server goes away; one that ends with its answer need not be told to drain."""

    caller: Caller

    def drain(self) -> None:  # noqa: B027
        """Ends the call, at once or after its running answer, and leaves."""

    def end_idle(self, since: float) -> None:  # noqa: B027
        """Ends the call if nothing was asked on it since then."""

    @abstractmethod
    def end_answer(self) -> None:
        """Ends the running answer where it is, and then the call."""

    @abstractmethod
    def end_refused(self, refusal: AuthenticationError) -> None:
        """Ends the call: its caller has lost access."""


class Lifecycle:
    """The open calls of a server, and whether it takes new ones. `drained`: it drains, and has none any more.

    `hang_seconds`: a forward hangs that is stuck for longer; `idle_seconds`: a call on which nothing is asked for so
    long is ended; 0: never. `stuck_seconds`: for how long the running job has had no processor, or, if that is more,
    how much of one it has used: neither is much on a machine that is only busy, whose time goes to other programs.
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
        self.drained = asyncio.Event()
        self._unopened: dict[Callable[[], None], None] = {}  # oldest first

    @property
    def calls(self) -> int:
        return len(self._calls)

    # ------------------------------------------------------------ calls

    def check_open(self) -> None:
        if self.hangs:
            raise UnavailableError("The server's model does not answer.", hint="Restart the server.")
        if self.draining:
            raise self.leaving()

    def leaving(self) -> UnavailableError:
        error = UnavailableError("The server is shutting down.", hint="Connect to another one, or try again later.")
        error.servers = self.fleet.names()
        return error

    @contextmanager
    def opening(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Holds one of MOST_UNOPENED places while a stream waits for its Open; the oldest makes room for a new one."""
        self._unopened[give_up] = None
        if len(self._unopened) > MOST_UNOPENED:
            oldest = next(iter(self._unopened))
            del self._unopened[oldest]
            oldest()
        try:
            yield
        finally:
            self._unopened.pop(give_up, None)

    def enter(self, call: OpenCall) -> None:
        self._calls.add(call)

    def leave(self, call: OpenCall) -> None:
        self._calls.discard(call)
        if self.draining and not self._calls:
            self.drained.set()

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
        if self._idle_seconds:
            since = self._clock() - self._idle_seconds
            for call in tuple(self._calls):
                call.end_idle(since)

    def end_refused(self, gate: Gate) -> None:
        for call in tuple(self._calls):
            if (refusal := gate.refusal(call.caller)) is not None:
                call.end_refused(refusal)

    def drain(self) -> None:
        self.draining = True
        if not self._calls:
            self.drained.set()
        for call in tuple(self._calls):
            call.drain()

    def end_answers(self) -> None:
        for call in tuple(self._calls):
            call.end_answer()


@dataclass(frozen=True, slots=True)
class Host:
    """A server that does not listen yet. `drafter_files`: what clients may fetch; None: nothing."""

    services: Services
    lifecycle: Lifecycle
    admission: Admission
    drafter_files: DrafterFiles | None

    @classmethod
    def assemble(
        cls,
        served: Served,
        stepper: Stepper,
        settings: ServerSettings,
        *,
        drafter_files: DrafterFiles | None = None,
        gate: Gate | None = None,
        observer: Observer | None = None,
        thread: InferenceThread | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Host:
        """Makes the parts of a server that serves this. `thread`: where models run; None: one of its own."""
        admission = Admission(settings, gate or Gate(), clock)
        services = Services(served, stepper, settings, admission.rates, observer or Observer(), thread, clock)
        lifecycle = Lifecycle(settings.hang_seconds, settings.idle_seconds, clock)
        return cls(services, lifecycle, admission, drafter_files)

    @property
    def load(self) -> float:
        """How much of this server is taken, 0 to 1; 1: it takes in no new answers."""
        return 1.0 if self.lifecycle.draining or self.lifecycle.hangs else self.services.load

    def end_refused(self) -> None:
        """Ends the calls and the sessions of callers whose keys are no longer in force."""
        gate, registry = self.admission.gate, self.services.registry
        if not gate.wants_keys:
            return
        self.lifecycle.end_refused(gate)
        for live in registry.live_sessions:
            if gate.refusal(live.caller) is not None:
                registry.close(live)
