"""Slow forms of answers: what may follow is found on a thread of its own before the forward, so that no other waits.

State: the steps that wait for that thread, whose owners take turns, and whether it works. Invariant: meanwhile a
session counts as stepping; it steps afterwards, with what was found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from moa_shared.programs.elapsed import ms_since

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.planning.fair_queue import FairQueue
from moa_server.engine.thread.session_jobs import SessionJobs
from moa_server.session.verification import StepPlan

# Of the time that a step took, before the next one begins: reading a token holds Python's lock, for which the event
# loop and the inference thread wait too. A single answer does not notice, for its forward takes as long.
REST = 2.0


class SlowForms:
    """Steps whose form needs time.

    Args:
        jobs: post to the event loop.
        wake: has a session step again.
    """

    def __init__(self, jobs: SessionJobs, wake: Callable[[LiveSession], None]) -> None:
        self._jobs = jobs
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "slow forms")
        self._waiting = FairQueue[tuple[LiveSession, StepPlan]](lambda each: each[0].caller.owner)
        self._works = False

    def defers(self, live: LiveSession, plan: StepPlan) -> bool:
        """Whether a session's step waits for its form, which is then worked on."""
        if not plan.form_needs_time:
            return False
        live.turn.occupy()
        self._waiting.add((live, plan.without_draft()))
        self._begin()
        return True

    def _begin(self) -> None:
        if self._waiting and not self._works:
            self._works = True
            self._thread.submit(self._find, *self._waiting.take())

    def _find(self, live: LiveSession, plan: StepPlan) -> None:
        """Finds what may follow, which the form then knows."""
        began = time.perf_counter()
        try:
            plan.allowed()
        except Exception as error:  # noqa: BLE001 (whatever it raises ends only this session)
            self._jobs.post_loss(live, error)
        self._jobs.post(partial(self._end, live, ms_since(began)))

    def _end(self, live: LiveSession, ms: float) -> None:
        live.turn.vacate()
        self._wake(live)
        asyncio.get_running_loop().call_later(REST * ms / 1e3, self._rested)

    def _rested(self) -> None:
        self._works = False
        self._begin()
