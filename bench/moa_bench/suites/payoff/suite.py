"""`moa-bench payoff`: all users of a server at once, by round trip and by their number, in each way to draft."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.harness.links import Link, linked
from moa_bench.harness.servers import running_server
from moa_bench.report.experiment import Experiment
from moa_bench.report.journal import Keep, measure_afresh
from moa_bench.report.report import PAYOFF
from moa_bench.suites.capacity.suite import CapacityEffort
from moa_bench.suites.payoff import tables
from moa_bench.users.questions import Lengths, make_questions
from moa_bench.users.strategies import AUTO_AT, Way

if TYPE_CHECKING:
    from moa_bench.users.plan import Plan

WAYS = (Way("plain"), Way("server"), Way("shipped"), Way("everything"))
SIZED_WAYS = (Way("plain"), Way("oracle", AUTO_AT))  # no drafter has learnt random weights
LOADING_S = 60.0
SHORT = Lengths(40, 120)
APART_S = 2.0  # in which several users begin, one after the other: most of an answer of one of sixteen


@dataclass(frozen=True, slots=True)
class PayoffEffort:
    """How much to measure.

    Args:
        rtts_ms: round trips of the users' links; 0: loopback.
        users: who ask at the same time.
        rounds: of all ways in turn.
        seconds: for which they ask, in each way.
        answer_tokens: of each answer.
        seed: of prompts and links.
    """

    rtts_ms: tuple[float, ...] = (0.0, 100.0, 300.0)
    users: tuple[int, ...] = (1, 4, 16)
    rounds: int = 2
    seconds: float = 4.0
    answer_tokens: int = 64
    seed: int = 0


QUICK = PayoffEffort((0.0, 50.0), (1, 2), 1, 5.0, 24)


def estimate_s(effort: PayoffEffort) -> float:
    """About how many seconds it takes."""
    of_all_users = sum(effort.seconds + 1.0 + (APART_S if users > 1 else 0.0) for users in effort.users)
    return LOADING_S + len(effort.rtts_ms) * effort.rounds * (len(WAYS) + 1) * of_all_users


def run_payoff(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    sized: bool = False,
) -> None:
    """Measure and report.

    Args:
        sized: the model has random weights in a real size, and oracles draft.

    Raises:
        MoaError: a server or link fails, or the server refuses a user.
    """
    effort = QUICK if quick else PayoffEffort()
    name = _name(sized)
    experiment = Experiment(name, quick=quick, json_file=json_file, pin=pin)
    make_progress().note(f"This takes about {estimate_s(effort) / 60:.0f} minutes.")
    cores = experiment.server_cores, experiment.own_cores
    experiment.result |= measure(effort, measure_afresh, model=model, level=level, cores=cores, sized=sized)
    experiment.publish(render(experiment.result), page=PAYOFF)
    if (picture := experiment.picture_path(name)) is not None:
        for path in draw(experiment.result, picture.parent):
            click.echo(path)


def measure(
    effort: PayoffEffort,
    keep: Keep,
    *,
    model: str = "default",
    level: str = INT8,
    cores: tuple[set[int] | None, set[int] | None] = (None, None),
    sized: bool = False,
) -> dict[str, Any]:
    """Rounds of all ways for each round trip and number of users.

    Args:
        keep: takes the key of a round, and what measures it.
        cores: of the server, and of users and links; None: any.

    Raises:
        MoaError: as `run_payoff`.
    """
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.drafters import drafter_file, find_drafter
    from moa_bench.harness.prompts import PASSAGE
    from moa_bench.harness.split_client import client_settings, describe, load_split_device
    from moa_bench.users.plan import Plan
    from moa_bench.users.shipped_device import device_maker

    progress = make_progress()
    files = resolve(model, progress=progress)
    drafter = find_drafter(files)
    passage = load_tokenizer(files).encode(PASSAGE)
    questions = make_questions(passage, SHORT, max(effort.users), 2, effort.seed)
    crowd = CapacityEffort(
        effort.users, effort.seconds, 2, effort.answer_tokens, SHORT, apart_seconds=APART_S, seed=effort.seed
    )
    server_cores, own_cores = cores
    ways = SIZED_WAYS if sized else WAYS
    cells = []
    with ExitStack() as stack:
        stack.enter_context(on_cores(own_cores))
        runner = stack.enter_context(make_runner())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        path = str(drafter_file(drafter, folder))
        serve = partial(running_server, model, level=level, cores=server_cores)
        server = stack.enter_context(serve(drafter=path)).address
        device = load_split_device(runner, client_settings(server=server, model=model, drafter=path))
        make_device = device_maker(device, drafter)
        described = runner.run(describe(server))
        with progress.task("Users", len(effort.rtts_ms) * len(effort.users)) as task:
            for rtt_ms in effort.rtts_ms:
                link = Link(f"RTT {rtt_ms:g} ms", rtt_ms / 2)
                with linked(link, server, seed=effort.seed, cores=own_cores) as running:
                    vocab_size = int(files.config["vocab_size"])
                    plan = Plan(crowd, [running.address], described, vocab_size, questions, make_device)
                    runner.run(plan.write_texts())
                    for users in effort.users:
                        cell = keep(
                            f"{rtt_ms:g} {users}", partial(measure_cell, runner, plan, users, effort.rounds, ways)
                        )
                        cells.append(cell | {"rtt_ms": rtt_ms, "users": users})
                        task.advance(1)
    return {
        "name": _name(sized),
        "target": files.target_id,
        "level": level,
        "effort": asdict(effort),
        "drafter": f"an oracle, {crowd.draft_ms:g} ms a draft step" if sized else drafter.description,
        "cells": cells,
    }


def _name(sized: bool) -> str:
    return "payoff-sized" if sized else "payoff"


def measure_cell(
    runner: asyncio.Runner, plan: Plan, users: int, rounds: int, ways: Sequence[Way] = WAYS
) -> dict[str, Any]:
    """So many rounds with so many users.

    Returns:
        {"rounds": [{way: [{"tokens_per_s", "gap_p95_ms", "first_p50_ms", "slowest_tokens_per_s", "other_texts"}]}]}.
    """
    return {"rounds": [_measure_round(runner, plan, users, ways) for _ in range(rounds)]}


def _measure_round(
    runner: asyncio.Runner, plan: Plan, users: int, ways: Sequence[Way]
) -> dict[str, list[dict[str, Any]]]:
    """All ways; plain serving first and last."""
    taken: dict[str, list[dict[str, Any]]] = {}
    for way in (*ways, ways[0]):
        cell = runner.run(plan.measure(users, way))
        met = cell.met
        taken.setdefault(way.name, []).append(
            {
                "tokens_per_s": round(met.tokens_per_s, 3),
                "gap_p95_ms": round(met.gap_p95_ms, 1),
                "first_p50_ms": round(met.first_p50_ms, 1),
                "slowest_tokens_per_s": round(met.slowest_tokens_per_s, 3),
                "other_texts": cell.other_texts,
                "client_share": cell.client_share,
            }
        )
    return taken


def render(result: Mapping[str, Any]) -> str:
    """Markdown tables of a result, which holds the machine's facts too."""
    return tables.render(result)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """The map; raises ConfigError where matplotlib is missing or a file cannot be written."""
    from moa_bench.suites.payoff import picture

    return picture.draw(result, folder)
