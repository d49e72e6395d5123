"""The parts of a server, put together: what it serves, whom it lets in, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from moa_server.access.authentication import Gate
from moa_server.engine.observer import Observer
from moa_server.engine.stepper import Stepper
from moa_server.service.admission import Admission
from moa_server.service.fetch import DrafterFiles
from moa_server.service.lifecycle import Lifecycle
from moa_server.service.served import Served
from moa_server.service.services import Services
from moa_server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Host:
    """A server that does not listen yet.

    Args:
        services: what calls work with.
        lifecycle: the open calls, and whether there may be new ones.
        admission: lets calls begin.
        drafter_files: what clients may fetch; None: nothing.
    """

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
        before: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Host:
        """Makes the parts of a server that serves this.

        Args:
            gate: the keys of callers; None: none are wanted.
            observer: learns what happens; None: a no-op.
            before: called once on the inference thread.
            clock: seconds, monotonic.
        """
        admission = Admission(settings, gate or Gate(), clock)
        services = Services(served, stepper, settings, admission.rates, observer or Observer(), before, clock)
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
