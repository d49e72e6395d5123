"""What all numbers of users and ways share in a run: the questions, their texts, the devices, the links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Literal

from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.oracle import Script
from moa_bench.harness.prompts import PASSAGE
from moa_bench.harness.split_client import describe
from moa_bench.users.askers import OracleAsker, PlainAsker
from moa_bench.users.effort import UsersEffort
from moa_bench.users.figures import UserAnswer, UsersCell, UserStats
from moa_bench.users.questions import make_questions
from moa_bench.users.shipped_device import ShippedAsker, device_maker
from moa_bench.users.strategies import Strategy
from moa_bench.users.users import Asker, run_users

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb
    from moa_client.device.loading import Device

    from moa_bench.harness.stage import Stage

SETTLE_SECONDS = 0.5  # for the server to end what users broke off


class UsersPlan:
    """Runs users. State: the text that answers each question.

    Args:
        addresses: where users connect, in turn: the server's, or of links to it.
        described: what the server says of itself.
        questions: [users][questions] prompts.
        make_device: a device for one user.
    """

    def __init__(
        self,
        effort: UsersEffort,
        addresses: Sequence[str],
        described: pb.DescribeResponse,
        vocab_size: int,
        questions: Sequence[Sequence[Sequence[int]]],
        make_device: Callable[[], Device],
    ) -> None:
        self._effort = effort
        self._addresses = addresses
        self._described = described
        self._vocab_size = vocab_size
        self._questions = questions
        self._make_device = make_device
        self._settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
        self._texts: dict[tuple[int, int], list[int]] = {}

    async def write_texts(self) -> None:
        """Has each question answered once: the oracle's scripts. The server has measured its steps after that."""
        answers, _ = await self._run(self._plain, len(self._questions), None)
        self._texts = {(answer.user, answer.question): answer.tokens for answer in answers}

    async def measure(self, users: int, way: Strategy) -> UsersCell:
        """All users at once; texts must have been written."""
        make = self._maker(way)
        cpu_s, began_s = time.process_time(), time.perf_counter()
        answers, ended_s = await self._run(make, users, self._effort.seconds)
        share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
        await asyncio.sleep(SETTLE_SECONDS)
        other_texts = sum(
            answer.tokens != self._texts[answer.user, answer.question][: len(answer.tokens)] for answer in answers
        )
        met = UserStats.of(answers, users, ended_s, self._apart_seconds(users))
        return UsersCell(users, way, met, round(share, 3), other_texts)

    def _apart_seconds(self, users: int) -> float:
        return self._effort.apart_seconds if users > 1 else 0.0

    async def _run(
        self, make: Callable[[int], Asker], users: int, seconds: float | None
    ) -> tuple[list[UserAnswer], float]:
        effort = self._effort
        async with AsyncExitStack() as stack:
            askers = [make(user) for user in range(users)]
            for asker in askers:
                stack.push_async_callback(asker.close)
            return await run_users(
                askers,
                self._questions[:users],
                seconds,
                apart_seconds=self._apart_seconds(users) if seconds is not None else 0.0,
                think_seconds=effort.think_seconds,
                seed=effort.seed,
            )

    def _maker(self, way: Strategy) -> Callable[[int], Asker]:
        if way.acceptance is not None:
            return partial(self._oracle, way.acceptance, "auto" if way.server_drafts else "device")
        if way.drafts in ("shipped", "everything"):
            return partial(self._shipped, "auto" if way.server_drafts else "device")
        return partial(self._plain, server_drafts=way.server_drafts)

    def _address(self, user: int) -> str:
        return self._addresses[user % len(self._addresses)]

    def _plain(self, user: int, server_drafts: bool = False) -> Asker:
        return PlainAsker(self._address(user), self._settings, server_drafts=server_drafts)

    def _shipped(self, drafting: Literal["device", "auto"], user: int) -> Asker:
        return ShippedAsker(self._address(user), self._make_device(), self._vocab_size, self._settings, drafting)

    def _oracle(self, acceptance: float, drafting: Literal["device", "auto"], user: int) -> Asker:
        scripts = [
            Script((*prompt, *self._texts[user, number]), acceptance, self._effort.seed + user, self._vocab_size)
            for number, prompt in enumerate(self._questions[user])
        ]
        return OracleAsker(
            self._address(user),
            self._described,
            self._settings,
            scripts,
            self._effort.draft_ms,
            drafting,
        )


def plan_of(stage: Stage, effort: UsersEffort, addresses: Sequence[str]) -> UsersPlan:
    """A plan whose users ask pieces of the bench's own passage of a server, at these addresses in turn.

    Raises:
        MoaError: the server cannot be reached.
    """
    passage = stage.tokenizer.encode(PASSAGE)
    questions = make_questions(passage, effort.lengths, max(effort.users), effort.prompts, effort.seed)
    described = stage.runner.run(describe(stage.address))
    make_device = device_maker(stage.device, stage.drafter)
    return UsersPlan(effort, addresses, described, stage.vocab_size, questions, make_device)
