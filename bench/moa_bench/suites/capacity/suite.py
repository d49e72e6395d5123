"""`moa-bench capacity`: more and more users on one server, all in one process on the other core."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.levels import INT8

from moa_bench.harness.cores import on_cores
from moa_bench.harness.links import Link, find_links, linked
from moa_bench.harness.servers import running_server
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import ENGINE
from moa_bench.suites.capacity import tables
from moa_bench.users.questions import Lengths, make_questions
from moa_bench.users.strategies import KINDS, Drafts, make_ways

MIXED = Lengths(50, 4000)


@dataclass(frozen=True, slots=True)
class CapacityEffort:
    """How much to measure.

    Args:
        users: numbers of users, ascending.
        seconds: for which they ask, each number of them in each way.
        prompts: of each user, asked in turn.
        answer_tokens: of each answer.
        lengths: of prompts.
        think_seconds: of a user after an answer, on average; 0: the next question follows at once.
        apart_seconds: in which several users begin, one after the other; 0: at once. If answers are equally long too,
            users go on in step: all prompts are read together, and all answers end together.
        kinds: who drafts, besides plain serving.
        acceptances: of the oracle's drafts.
        links: names of the users' links, which they take in turn; none: loopback.
        draft_ms: of a draft step of the oracle, as in the network experiment.
        seed: of prompts, thinking, links and the oracle's errors.
    """

    users: tuple[int, ...] = (1, 4, 16, 64)
    seconds: float = 16.0
    prompts: int = 2
    answer_tokens: int = 64
    lengths: Lengths = MIXED
    think_seconds: float = 0.0
    apart_seconds: float = 0.0
    kinds: tuple[Drafts, ...] = KINDS
    acceptances: tuple[float, ...] = (0.35, 0.5, 0.65, 0.8, 0.9)
    links: tuple[str, ...] = ()
    draft_ms: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")


QUICK = CapacityEffort((1, 4, 16), 7.0, 1, acceptances=(0.8,))


def run_capacity(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    effort: CapacityEffort,
    level: str = INT8,
    sized: bool = False,
) -> None:
    """Measure and report; the picture goes to docs/img of the checkout, if the results do.

    Args:
        sized: the model has random weights in a real size.

    Raises:
        MoaError: the model cannot be had, a link is unknown, or the server fails or refuses a user.
    """
    links = find_links(effort.links) if effort.links else (Link("loopback"),)
    experiment = Experiment("capacity", quick=quick, json_file=json_file, pin=pin, effort=effort, level=level)
    with on_cores(experiment.own_cores), make_runner() as runner:
        _measure(experiment, model, links, effort, runner)
    experiment.publish(tables.render(experiment.result), name=_section(effort, sized), page=ENGINE)
    if (picture := experiment.picture_path(_section(effort, sized))) is not None:
        from moa_bench.suites.capacity.picture import draw

        click.echo(draw(experiment.result, picture))


def _section(effort: CapacityEffort, sized: bool) -> str:
    """Of the page."""
    if sized:
        return "capacity-sized"
    return "capacity-links" if effort.links else "capacity"


def _measure(
    experiment: Experiment, model: str, links: tuple[Link, ...], effort: CapacityEffort, runner: asyncio.Runner
) -> None:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.drafters import drafter_file, find_drafter, load_decoder
    from moa_bench.harness.prompts import PASSAGE
    from moa_bench.harness.split_client import client_settings, describe, load_split_device
    from moa_bench.suites.micro.drafting import draft_step_ms
    from moa_bench.users.plan import Cell, Plan
    from moa_bench.users.shipped_device import device_maker

    progress = make_progress()
    files = resolve(model, progress=progress)
    drafter = find_drafter(files)
    passage = load_tokenizer(files).encode(PASSAGE)
    questions = make_questions(passage, effort.lengths, max(effort.users), effort.prompts, effort.seed)
    with ExitStack() as stack:
        path = str(drafter_file(drafter, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))))
        serve = partial(running_server, model, level=experiment.result["level"], cores=experiment.server_cores)
        server = stack.enter_context(serve(drafter=path)).address
        device = load_split_device(runner, client_settings(server=server, model=model, drafter=path))
        addresses = [
            stack.enter_context(linked(link, server, seed=effort.seed, cores=experiment.own_cores)).address
            for link in links
        ]
        described = runner.run(describe(server))
        make_device = device_maker(device, drafter)
        plan = Plan(effort, addresses, described, int(files.config["vocab_size"]), questions, make_device)
        cells: list[Cell] = []
        experiment.result |= {
            "target": files.target_id,
            "drafter": drafter.description,
            "draft_step_ms": round(draft_step_ms(load_decoder(files, drafter)), 2),
            "links": [link.name for link in links],
            "cells": cells,
        }
        ways = make_ways(effort.kinds, effort.acceptances)
        with progress.task("Texts"):
            runner.run(plan.write_texts())
        with progress.task("Users", len(ways) * len(effort.users)) as task:
            for users in effort.users:
                for way in ways:
                    cells.append(runner.run(plan.measure(users, way)))
                    experiment.save()
                    task.advance(1)
