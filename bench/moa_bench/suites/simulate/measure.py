"""What each schedule is worth over each link, by acceptance."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

from moa_client.drafting.settings import DraftingSettings

from moa_bench.harness.links import find_links
from moa_bench.simulation.answer import SimulatedAnswer, simulate
from moa_bench.simulation.server import Costs
from moa_bench.simulation.user import SimulatedLink
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.simulate import SimulateEffort

ACCEPTANCES = (0.0, 0.35, 0.5, 0.65, 0.8, 0.9)
LONGEST_ROUND = 20
STREAMED = DraftingSettings("device")
WAITING = DraftingSettings("device", run_ahead=False)
ROUNDS = DraftingSettings("device", rounds=True, run_ahead=False)
MEMORY_BYTES = 260  # that follow each token down in int4


@dataclass(frozen=True, slots=True)
class SimulatedCell:
    """One link at one acceptance; speeds over that of a server that streams by itself."""

    link: str
    acceptance: float
    streamed: float  # drafts streamed to a server that never waits
    up_bytes: float  # of those drafts for each token
    drafted: float  # nodes for each token
    waiting: float  # drafts streamed to a server that takes no step without one
    rounds: float  # synchronous rounds at their best length
    round_length: int


def measure(effort: SimulateEffort, run: SuiteRun) -> Result:
    costs = Costs()
    cells = [
        _cell(link.name, SimulatedLink(link.conditions, MEMORY_BYTES), acceptance, costs, effort)
        for link in find_links(effort.links)
        for acceptance in ACCEPTANCES
    ]
    return {"costs": costs, "cells": cells}


def _cell(name: str, link: SimulatedLink, acceptance: float, costs: Costs, effort: SimulateEffort) -> SimulatedCell:
    tokens, seeds = effort.tokens, range(effort.seeds)
    run = partial(simulate, acceptance, link, tokens=tokens, costs=costs)
    plain = 1e3 / costs.plain_ms

    def speed(outcomes: Sequence[SimulatedAnswer]) -> float:
        return round(mean(outcome.tokens_per_s for outcome in outcomes) / plain, 3)

    streamed = [run(seed=seed, drafting=STREAMED) for seed in seeds]
    waiting = [run(seed=seed, drafting=WAITING) for seed in seeds]
    rounds_of = partial(run, drafting=ROUNDS)
    length = max(range(1, LONGEST_ROUND + 1), key=lambda length: rounds_of(seed=0, round_length=length).tokens_per_s)
    rounds = [rounds_of(seed=seed, round_length=length) for seed in seeds]
    return SimulatedCell(
        name,
        acceptance,
        speed(streamed),
        round(mean(outcome.up_bytes_a_token for outcome in streamed), 1),
        round(mean(outcome.drafted_nodes for outcome in streamed) / tokens, 2),
        speed(waiting),
        speed(rounds),
        length,
    )
