"""Two replicas on two cores against one on one core: tokens a second of plain streaming, in interleaved pairs.

State: both replicas run all the time, each on a core of its own; in the turns of one, the other has nothing to do.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moa_shared.errors import ConfigError

from moa_bench.capacity.askers import PlainAsker
from moa_bench.capacity.users import run_users
from moa_bench.fleet.texts import Question
from moa_bench.report.spread import Spread, paired_ratio

WARM_UP_S = 2.0  # prompts are read meanwhile


@dataclass(frozen=True, slots=True)
class ThroughputEffort:
    """How two replicas are compared with one.

    Args:
        pairs: of turns; `seconds`: that each lasts once the prompts have been read.
        users: of each replica, and in another comparison of both together.
        answer_tokens: longer than a turn.
    """

    pairs: int = 7
    seconds: float = 10.0
    users: int = 8
    answer_tokens: int = 2000


QUICK_THROUGHPUT = ThroughputEffort(pairs=2, seconds=2.0, users=2)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens a second.

    Args:
        one, two: replicas with `users` each; `ratio` of the two, pair by pair.
        one_full: one replica with all users of the two; `full_ratio`: of two to that.
    """

    users: int
    one: Spread
    two: Spread
    ratio: Spread
    one_full: Spread
    full_ratio: Spread


def two_cores() -> tuple[set[int], set[int]]:
    """A core for each replica.

    Raises:
        ConfigError: there are not two.
    """
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(allowed) < 2:
        raise ConfigError("Two replicas need two cores.", hint="Allow more cores.")
    return {allowed[0]}, {allowed[1]}


def compare_throughput(
    runner: asyncio.Runner, addresses: Sequence[str], questions: Sequence[Question], effort: ThroughputEffort
) -> Throughput:
    """Measures in turn; the clients use what the replicas leave of both cores.

    Args:
        addresses: of the two replicas.

    Raises:
        MoaError: a replica fails.
    """
    both = list(addresses)
    cases = {
        "one": partial(_rate, both[:1], effort.users),
        "two": partial(_rate, both, 2 * effort.users),
        "one, full": partial(_rate, both[:1], 2 * effort.users),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(effort.pairs):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            gc.collect()
            taken[name].append(runner.run(cases[name](questions, effort)))
    one, two, full = (taken[name] for name in names)
    return Throughput(
        effort.users, Spread.of(one), Spread.of(two), paired_ratio(two, one), Spread.of(full), paired_ratio(two, full)
    )


async def _rate(addresses: Sequence[str], users: int, questions: Sequence[Question], effort: ThroughputEffort) -> float:
    """Tokens a second of all users, who are spread evenly."""
    settings = questions[0][1]
    askers = [PlainAsker(addresses[user % len(addresses)], settings) for user in range(users)]
    prompts = [[questions[user % len(questions)][0]] for user in range(users)]
    try:
        began_s = time.perf_counter()
        answers, ended_s = await run_users(askers, prompts, WARM_UP_S + effort.seconds)
    finally:
        for asker in askers:
            await asker.close()
    from_s = began_s + WARM_UP_S
    counts = (count for each in answers for at_s, count in each.arrivals if at_s >= from_s)
    return sum(counts) / (ended_s - from_s)
