"""`moa-bench capacity`: more and more users on one server, all in one process on the other core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.errors import ConfigError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.levels import INT8

from moa_bench.capacity import tables
from moa_bench.capacity.figures import Answer, Met
from moa_bench.capacity.questions import Lengths, make_questions
from moa_bench.harness.cores import on_cores
from moa_bench.harness.servers import running_server
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import ENGINE

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb

    from moa_bench.capacity.users import Asker

MIXED = Lengths(50, 4000)
SETTLE_SECONDS = 0.5  # for the server to end what users broke off


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
        acceptances: of the oracle's drafts, besides plain streaming.
        draft_ms: of a draft step of the oracle, as in the network experiment.
        seed: of prompts, thinking and the oracle's errors.
    """

    users: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seconds: float = 30.0
    prompts: int = 2
    answer_tokens: int = 64
    lengths: Lengths = MIXED
    think_seconds: float = 0.0
    acceptances: tuple[float, ...] = (0.35, 0.5, 0.65, 0.8, 0.9)
    draft_ms: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")


QUICK = CapacityEffort((1, 4, 16), 8.0, 1, acceptances=(0.8,))


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of users, all in one way.

    Args:
        acceptance: of the oracle; None: plain streaming.
        client_share: CPU time of all users' process over the time that passed; near 1, it is what is measured.
        other_texts: answers that differ from the text that was written first.
    """

    users: int
    acceptance: float | None
    met: Met
    client_share: float
    other_texts: int


def run_capacity(
    *, model: str, quick: bool, json_file: Path | None, pin: bool, effort: CapacityEffort, level: str = INT8
) -> None:
    """Measure and report.

    Raises:
        MoaError: the model cannot be had, or the server fails or refuses a user.
    """
    experiment = Experiment("capacity", quick=quick, json_file=json_file, pin=pin, effort=effort, level=level)
    serve = partial(running_server, model, level=level, cores=experiment.server_cores)
    with on_cores(experiment.own_cores), serve() as server, make_runner() as runner:
        _measure(experiment, model, server.address, effort, runner)
    experiment.publish(tables.render(experiment.result), page=ENGINE)


def _measure(experiment: Experiment, model: str, address: str, effort: CapacityEffort, runner: asyncio.Runner) -> None:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.prompts import PASSAGE
    from moa_bench.harness.split_client import describe

    progress = make_progress()
    files = resolve(model, progress=progress)
    passage = load_tokenizer(files).encode(PASSAGE)
    questions = make_questions(passage, effort.lengths, max(effort.users), effort.prompts, effort.seed)
    plan = _Plan(effort, address, runner.run(describe(address)), int(files.config["vocab_size"]), questions)
    cells: list[Cell] = []
    experiment.result |= {"target": files.target_id, "cells": cells}
    ways = (None, *effort.acceptances)
    with progress.task("Texts"):
        runner.run(plan.write_texts())
    with progress.task("Users", len(ways) * len(effort.users)) as task:
        for users in effort.users:
            for acceptance in ways:
                cells.append(runner.run(plan.measure(users, acceptance)))
                experiment.save()
                task.advance(1)


class _Plan:
    """What all cells share. State: the text that answers each question."""

    def __init__(
        self,
        effort: CapacityEffort,
        address: str,
        described: pb.DescribeResponse,
        vocab_size: int,
        questions: Sequence[Sequence[Sequence[int]]],
    ) -> None:
        self._effort = effort
        self._address = address
        self._described = described
        self._vocab_size = vocab_size
        self._questions = questions
        self._settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
        self._texts: dict[tuple[int, int], list[int]] = {}

    async def write_texts(self) -> None:
        """Has each question answered once: the oracle's scripts. The server has measured its steps after that."""
        answers, _ = await self._run(self._plain, len(self._questions), None)
        self._texts = {(answer.user, answer.question): answer.tokens for answer in answers}

    async def measure(self, users: int, acceptance: float | None) -> Cell:
        """All users at once; texts must have been written."""
        cpu_s, began_s = time.process_time(), time.perf_counter()
        make = self._plain if acceptance is None else partial(self._oracle, acceptance)
        answers, ended_s = await self._run(make, users, self._effort.seconds)
        share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
        await asyncio.sleep(SETTLE_SECONDS)
        other_texts = sum(
            answer.tokens != self._texts[answer.user, answer.question][: len(answer.tokens)] for answer in answers
        )
        return Cell(users, acceptance, Met.of(answers, users, ended_s), round(share, 3), other_texts)

    async def _run(self, make: Callable[[int], Asker], users: int, seconds: float | None) -> tuple[list[Answer], float]:
        from moa_bench.capacity.users import run_users

        effort = self._effort
        async with AsyncExitStack() as stack:
            askers = [make(user) for user in range(users)]
            for asker in askers:
                stack.push_async_callback(asker.close)
            return await run_users(
                askers, self._questions[:users], seconds, think_seconds=effort.think_seconds, seed=effort.seed
            )

    def _plain(self, user: int) -> Asker:
        from moa_bench.capacity.askers import PlainAsker

        return PlainAsker(self._address, self._settings)

    def _oracle(self, acceptance: float, user: int) -> Asker:
        from moa_bench.capacity.askers import OracleAsker
        from moa_bench.network.oracle import Script

        scripts = [
            Script((*prompt, *self._texts[user, number]), acceptance, self._effort.seed + user, self._vocab_size)
            for number, prompt in enumerate(self._questions[user])
        ]
        return OracleAsker(self._address, self._described, self._settings, scripts, self._effort.draft_ms)
