"""What is done to a fleet: each scenario is a script of what happens to replicas and links while clients ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from moa_shared.errors import MoaError

from moa_bench.fleet.clients import Clients
from moa_bench.fleet.outcome import shares_of
from moa_bench.fleet.scale_rule import ScaleRule, answers_under_way
from moa_bench.fleet.stage import Stage
from moa_bench.harness.padding import Padding

LOOK_S = 1.0  # between looks at the load


@dataclass(frozen=True, slots=True)
class FleetEffort:
    """What is done to a fleet, how often, and under whom.

    Args:
        replicas: of the fleet; scaling uses `most_replicas`.
        updates: rolling updates: every replica is ended and replaced, one after the other.
        kills, joins, cuts, storms: how often each is done.
        between_s: from when all is well until the next incident.
        away_s: from a killed replica's end until it is started again.
        cut_s: that a link is cut for.
        grace_s: of a drain; short, so that answers are interrupted.
        end_s: that a server may take to end, besides its grace.
        phase_s: of each phase of the load that rises and falls.
        padding: of a larger target that each replica emulates; None: the target's own time.
    """

    replicas: int = 2
    most_replicas: int = 3
    updates: int = 20
    kills: int = 50
    joins: int = 3
    cuts: int = 10
    storms: int = 10
    clients: int = 16
    texts: int = 16
    answer_tokens: int = 64
    between_s: float = 3.0
    away_s: float = 2.0
    cut_s: float = 3.0
    grace_s: float = 1.0
    end_s: float = 15.0
    phase_s: float = 20.0
    padding: Padding | None = None


QUICK = FleetEffort(
    updates=1, kills=2, joins=1, cuts=1, storms=1, clients=4, texts=4, answer_tokens=24, between_s=1.0, away_s=0.5,
    cut_s=1.0, grace_s=0.2, phase_s=6.0,
)  # fmt: skip


@dataclass(slots=True)
class Scene:
    """A scenario that is being played.

    Args:
        own_cores: of everything but the replicas.
        on_done: called after each incident.
        facts: what only this scenario finds, by name.
    """

    stage: Stage
    clients: Clients
    effort: FleetEffort
    stack: ExitStack
    own_cores: set[int] | None
    on_done: Callable[[], None]
    facts: dict[str, float] = field(default_factory=dict)

    async def pause(self) -> None:
        await asyncio.sleep(self.effort.between_s)


Script = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario.

    Args:
        title: for tables.
        script: what happens.
        first: replicas that are up when it begins.
        all: replicas that there are.
        times: how often something happens.
        active: clients that ask from the beginning.
    """

    title: str
    script: Script
    first: Callable[[FleetEffort], int]
    all: Callable[[FleetEffort], int]
    times: Callable[[FleetEffort], int]
    active: Callable[[FleetEffort], int] = lambda effort: effort.clients


async def kill(scene: Scene) -> None:
    """Kills one replica after the other; each comes back."""
    for number in range(scene.effort.kills):
        replica = scene.stage.replicas[number % len(scene.stage.replicas)]
        await scene.stage.restart(replica, kill=True, away_s=scene.effort.away_s)
        scene.on_done()
        await scene.pause()


async def update(scene: Scene) -> None:
    """Replaces all replicas, one after the other."""
    for _ in range(scene.effort.updates):
        for replica in scene.stage.replicas:
            await scene.stage.restart(replica, kill=False)
            await scene.pause()
        scene.on_done()


async def add(scene: Scene) -> None:
    """One more replica joins, and leaves again."""
    stage, first_s, shares = scene.stage, [], []
    replica = stage.replicas[-1]
    for _ in range(scene.effort.joins):
        up_s = await stage.join(replica)
        await asyncio.sleep(scene.effort.phase_s)
        streams = [
            opening.at_s - up_s
            for each in scene.clients.asked
            for opening in each.openings
            if opening.address == replica.address and opening.at_s > up_s
        ]
        parts = shares_of(scene.clients.asked, stage.addresses, up_s)
        shares.append(parts[-1].tokens / max(1, sum(part.tokens for part in parts)))
        first_s += [min(streams)] if streams else []
        await stage.leave(replica)
        scene.on_done()
        await scene.pause()
    scene.facts |= {
        "joined": len(first_s),
        "first stream after, s, longest": round(max(first_s, default=0.0), 2),
        "its share of tokens since, least": round(min(shares, default=0.0), 3),
    }


async def partition(scene: Scene) -> None:
    """Half of the clients lose one replica after the other, and get it back."""
    stage = scene.stage
    links = stage.put_links(scene.stack, range(0, scene.effort.clients, 2), scene.own_cores)
    await scene.pause()
    for number in range(scene.effort.cuts):
        await stage.cut([links[number % len(links)]], scene.effort.cut_s)
        scene.on_done()
        await scene.pause()


async def storm(scene: Scene) -> None:
    """All clients lose all replicas at once, and get them back at once."""
    stage = scene.stage
    links = stage.put_links(scene.stack, range(scene.effort.clients), scene.own_cores)
    await scene.pause()
    for _ in range(scene.effort.storms):
        await stage.cut(links, scene.effort.cut_s)
        scene.on_done()
        await scene.pause()


async def scale(scene: Scene) -> None:
    """Few clients, then all, then few again; replicas follow by a simple rule."""
    effort, stage = scene.effort, scene.stage
    rule = ScaleRule(1, len(stage.replicas))
    most = 0
    for active, phases in ((_few(effort), 1), (effort.clients, 2), (_few(effort), 2)):
        scene.clients.active = active
        for _ in range(round(phases * effort.phase_s / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            wanted = rule.decide(await _answers(stage), len(stage.members))
            if wanted > len(stage.members):
                await stage.join(next(each for each in stage.replicas if each not in stage.members))
            elif wanted < len(stage.members):
                await stage.leave(stage.members[-1])
            most = max(most, len(stage.members))
        scene.on_done()
    scene.facts |= {"replicas, most": most, "at the end": len(stage.members)}


async def _answers(stage: Stage) -> float:
    """Answers under way at all replicas, as they say themselves."""
    from moa_bench.harness.split_client import describe

    answers = 0.0
    for each in stage.members:
        try:
            told = await describe(each.address)
        except MoaError:
            continue  # too busy to say: the next look will tell
        answers += answers_under_way(told.load, told.step_ms, told.row_ms)
    return answers


def _usual(effort: FleetEffort) -> int:
    return effort.replicas


def _few(effort: FleetEffort) -> int:
    return max(1, effort.clients // 8)


SCENARIOS: Mapping[str, Scenario] = {
    "kill": Scenario("kills", kill, _usual, _usual, lambda effort: effort.kills),
    "update": Scenario("rolling updates", update, _usual, _usual, lambda effort: effort.updates),
    "add": Scenario("joins", add, lambda effort: effort.replicas - 1, _usual, lambda effort: effort.joins),
    "partition": Scenario("partitions", partition, _usual, _usual, lambda effort: effort.cuts),
    "storm": Scenario("storms", storm, _usual, _usual, lambda effort: effort.storms),
    "scale": Scenario(
        "phases of load", scale, lambda effort: 1, lambda effort: effort.most_replicas, lambda effort: 3, _few
    ),
}
