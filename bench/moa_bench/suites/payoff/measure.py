"""Rounds of all ways for each round trip and number of users."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from moa_shared.programs.progress import make_progress

from moa_bench.harness.links import EmulatedLink, linked
from moa_bench.harness.oracle import has_no_drafter
from moa_bench.harness.stage import staged
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.payoff import SHORT, PayoffEffort
from moa_bench.users.plan import UsersPlan
from moa_bench.users.questions import UsersEffort
from moa_bench.users.strategies import Strategy

STRATEGIES = (Strategy("plain"), Strategy("server"), Strategy("shipped"), Strategy("everything"))
FIGURES = ("tokens_per_s", "gap_p95_ms", "first_p50_ms", "slowest_tokens_per_s")


def measure(effort: PayoffEffort, run: SuiteRun) -> Result:
    """The rounds; those of a round trip and a number of users are a cell."""
    crowd = UsersEffort(
        effort.users,
        effort.seconds,
        2,
        effort.answer_tokens,
        SHORT,
        seed=effort.seed,
        apart_seconds=effort.apart_s,
        waits_for_all=True,
    )
    cells = []
    with (
        staged(run.model, run.level, run.server_cores, run.own_cores) as stage,
        make_progress().task("Users", len(effort.rtts_ms) * len(effort.users)) as task,
    ):
        has_oracles = has_no_drafter(stage.files, {})
        oracles = (Strategy("plain"), *(Strategy("oracle", each) for each in effort.acceptances))
        strategies = oracles if has_oracles else STRATEGIES
        for rtt_ms in effort.rtts_ms:
            link = EmulatedLink(f"RTT {rtt_ms:g} ms", rtt_ms / 2)
            with linked(link, stage.address, seed=effort.seed, cores=run.own_cores) as running:
                plan = UsersPlan(stage, crowd, [running.address])
                stage.runner.run(plan.write_texts())
                for users in effort.users:
                    measured = partial(measure_cell, stage.runner, plan, users, effort.rounds, strategies)
                    cells.append(run.keep(f"{rtt_ms:g} {users}", measured) | {"rtt_ms": rtt_ms, "users": users})
                    task.advance(1)
    return {
        "target": stage.files.target_id,
        "drafter": f"an oracle, {crowd.draft_ms:g} ms a draft step" if has_oracles else stage.drafter.description,
        "cells": cells,
    }


def measure_cell(
    runner: asyncio.Runner, plan: UsersPlan, users: int, rounds: int, strategies: Sequence[Strategy] = STRATEGIES
) -> dict[str, Any]:
    """So many rounds with so many users: {"rounds": [{strategy: [FIGURES, "other_texts" and "client_share"]}]}."""
    return {"rounds": [_measure_round(runner, plan, users, strategies) for _ in range(rounds)]}


def _measure_round(
    runner: asyncio.Runner, plan: UsersPlan, users: int, strategies: Sequence[Strategy]
) -> dict[str, list[dict[str, Any]]]:
    """All strategies; plain serving first and last."""
    taken: dict[str, list[dict[str, Any]]] = {}
    for strategy in (*strategies, strategies[0]):
        cell = runner.run(plan.measure(users, strategy))
        met = asdict(cell.met)
        found = {name: round(met[name], 3) for name in FIGURES}
        found |= {"other_texts": cell.other_texts, "client_share": cell.client_share}
        taken.setdefault(strategy.name, []).append(found)
    return taken
