"""Clients on paper that have lost their replica or their network, and come back as the program's link does.

State: of each client, its back-off and the replicas that it knows. Invariant: all that it knows are asked at once, and
its own is preferred where it answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from moa_client.link.backoff import Backoff
from moa_client.link.monitor import LEAST_TIMEOUT_MS, TIMEOUT_ROUND_TRIPS

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.fleet.assumptions import FleetPlan
from moa_bench.simulation.fleet.replica import PlannedReplica

FORMER_MS = 100.0  # that the own replica may answer later than others (`FORMER_SECONDS`), or twice the round trip


class Choice(StrEnum):
    """Which of the replicas that answer a client goes to."""

    FIRST_NAMED = "the first that its replica named, in one order for all"
    SAME_LOAD = "the nearest and least loaded of those, the same for all"
    OWN_LOAD = "the nearest and least loaded of those, others for each"


@dataclass(slots=True)
class Returned:
    """A client that came back.

    Args:
        open_ms: from the loss until its stream was open; `text_ms`: until text came.
        attempts: that it made.
    """

    open_ms: float = 0.0
    text_ms: float = 0.0
    attempts: int = 0


class ReturningClient:
    """One client.

    Args:
        own: the replica that had its conversation; None: it is gone.
        others: that it knows, best first.
        text: tokens of its conversation; `has_kv`: whether `own` still has its keys and values.
        network_ms: when its network is there again; 0: it always is.
        seed: of waits and round trips.
        jitter: whether waits are drawn, as they are.
    """

    def __init__(
        self,
        loop: EventLoop,
        plan: FleetPlan,
        own: PlannedReplica | None,
        others: Sequence[PlannedReplica],
        text: int,
        *,
        has_kv: bool,
        choice: Choice,
        network_ms: float = 0.0,
        seed: int = 0,
        jitter: bool = True,
    ) -> None:
        self.returned = Returned()
        self._loop, self._plan, self._own, self._others = loop, plan, own, list(others)
        self._text, self._has_kv, self._choice, self._network_ms = text, has_kv, choice, network_ms
        self._random = random.Random(seed)
        self._backoff = Backoff(self._random if jitter else _Even())
        self._rtt_ms = {
            id(each): plan.rtt_ms * self._random.uniform(1 - plan.rtt_spread, 1 + plan.rtt_spread)
            for each in [*([] if own is None else [own]), *self._others]
        }

    def lose(self) -> None:
        """The network or the replica is gone from now on."""
        silence_ms = max(LEAST_TIMEOUT_MS, TIMEOUT_ROUND_TRIPS * self._plan.rtt_ms)
        self._loop.after(silence_ms, self._wait)

    def _wait(self) -> None:
        self._loop.after(1e3 * self._backoff.next_seconds(), self._attempt)

    def _attempt(self) -> None:
        self.returned.attempts += 1
        if self._loop.now_ms < self._network_ms:
            self._loop.after(1e3 * self._plan.retry_s, self._wait)
            return
        found: list[tuple[float, PlannedReplica, float]] = []
        asked = [*([] if self._own is None else [self._own]), *self._others]
        is_over = False

        def on_described(replica: PlannedReplica, load: float) -> None:
            nonlocal is_over
            found.append((self._loop.now_ms, replica, load))
            if is_over:
                return
            if replica is self._own:
                is_over = True
                self._open(replica)
            elif len(found) == 1:
                self._loop.after(max(FORMER_MS, 2 * self._plan.rtt_ms), choose)

        def choose() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._open(self._chosen([(replica, load) for _, replica, load in found]))

        for each in asked:
            self._describe(each, on_described)

    def _describe(self, replica: PlannedReplica, told: Callable[[PlannedReplica, float], None]) -> None:
        """Connects and asks for the load."""
        rtt_ms, plan = self._rtt_ms[id(replica)], self._plan

        def answer() -> None:
            load = replica.load
            self._loop.after(rtt_ms / 2, lambda: told(replica, load))

        def arrive() -> None:
            replica.call(plan.handshake_ms + plan.call_ms, answer)

        self._loop.after((plan.handshake_round_trips + 0.5) * rtt_ms, arrive)

    def _chosen(self, found: Sequence[tuple[PlannedReplica, float]]) -> PlannedReplica:
        step_ms = self._plan.costs.forward_ms(0, 1)

        def cost(each: tuple[PlannedReplica, float]) -> float:
            replica, load = each
            if self._choice is Choice.FIRST_NAMED:
                return float(self._others.index(replica))
            return self._rtt_ms[id(replica)] + step_ms / (1 - load)

        return min(found, key=cost)[0]

    def _open(self, replica: PlannedReplica) -> None:
        rtt_ms = self._rtt_ms[id(replica)]
        has_kv = self._has_kv and replica is self._own

        def arrive() -> None:
            replica.call(self._plan.call_ms, opened)

        def opened() -> None:
            self.returned.open_ms = self._loop.now_ms + rtt_ms / 2
            replica.resume(self._text, has_kv=has_kv, on_text=on_text)

        def on_text() -> None:
            self.returned.text_ms = self._loop.now_ms + rtt_ms / 2

        self._loop.after(rtt_ms / 2, arrive)


class _Even(random.Random):
    """Draws the middle each time: waits without jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2
