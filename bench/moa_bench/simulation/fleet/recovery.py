"""A cell tower fails, or a node: how long until all are served again, and what it costs the replicas. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.fleet.assumptions import FleetPlan
from moa_bench.simulation.fleet.replica import PlannedReplica
from moa_bench.simulation.fleet.returning import Choice, ReturningClient


@dataclass(frozen=True, slots=True)
class Waits:
    """Of all clients, in seconds."""

    median: float
    p95: float
    longest: float

    @classmethod
    def of(cls, values_ms: Sequence[float], from_ms: float = 0.0) -> Waits:
        ordered = sorted(max(0.0, each - from_ms) / 1e3 for each in values_ms)
        last = len(ordered) - 1
        return cls(*(round(ordered[int(share * last)], 3) for share in (0.5, 0.95, 1.0)))


@dataclass(frozen=True, slots=True)
class Recovery:
    """What happened.

    Args:
        opened, text: from when the network was there again (or the node was lost) until streams were open and text
            came.
        most_calls: that waited at one replica at once; `attempts`: of one client.
        read_tokens: of all, and of the replica that had most to read.
        most_came: clients that came to one replica with nothing; `kv_share`: of its memory that is then taken.
    """

    clients: int
    opened: Waits
    text: Waits
    most_calls: int
    attempts: int
    read_tokens: int
    most_read_tokens: int
    most_came: int
    kv_share: float


def lose_tower(plan: FleetPlan, lost: int, away_s: float, *, over: int, jitter: bool = True, seed: int = 0) -> Recovery:
    """So many clients lose their network at once, and get it back at once.

    Args:
        away_s: in between.
        over: replicas that had their conversations.
    """
    loop, draw = EventLoop(), random.Random(seed)
    replicas = [PlannedReplica(loop, plan) for _ in range(plan.replicas)]
    clients = []
    for number in range(lost):
        own = replicas[number % over]
        others = draw.sample([each for each in replicas if each is not own], plan.named)
        text = draw.randint(plan.least_tokens, plan.most_tokens)
        has_kv = away_s < plan.held_s
        own.kv_tokens -= 0 if has_kv else text
        clients.append(
            ReturningClient(
                loop, plan, own, others, text, has_kv=has_kv, choice=Choice.OWN_LOAD,
                network_ms=1e3 * away_s, seed=seed * lost + number, jitter=jitter,
            )
        )  # fmt: skip
    return _run(plan, loop, replicas, clients, 1e3 * away_s)


def lose_node(plan: FleetPlan, choice: Choice, *, seed: int = 0) -> Recovery:
    """A replica is gone with the keys and values of all its clients."""
    loop, draw = EventLoop(), random.Random(seed)
    replicas = [PlannedReplica(loop, plan) for _ in range(plan.replicas - 1)]
    named = draw.sample(replicas, plan.named)
    clients = []
    for number in range(plan.sessions):
        others = draw.sample(replicas, plan.named) if choice is Choice.OWN_LOAD else named
        text = draw.randint(plan.least_tokens, plan.most_tokens)
        seeded = seed * plan.sessions + number
        clients.append(ReturningClient(loop, plan, None, others, text, has_kv=False, choice=choice, seed=seeded))
    return _run(plan, loop, replicas, clients, 0.0)


def _run(
    plan: FleetPlan,
    loop: EventLoop,
    replicas: Sequence[PlannedReplica],
    clients: Sequence[ReturningClient],
    from_ms: float,
) -> Recovery:
    for each in clients:
        each.lose()
    loop.run(lambda: all(each.returned.text_ms for each in clients))
    returned = [each.returned for each in clients]
    return Recovery(
        len(clients),
        Waits.of([each.open_ms for each in returned], from_ms),
        Waits.of([each.text_ms for each in returned], from_ms),
        max(each.most_calls for each in replicas),
        max(each.attempts for each in returned),
        sum(each.read_tokens for each in replicas),
        max(each.read_tokens for each in replicas),
        max(each.came for each in replicas),
        round(max(each.kv_tokens for each in replicas) * plan.kv_token_bytes / plan.kv_bytes, 2),
    )
