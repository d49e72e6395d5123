"""What all numbers of users and ways share in a run: the questions, their texts, the devices, the links."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.oracle import Script, with_oracle
from moa_bench.harness.prompts import PASSAGE
from moa_bench.harness.split_client import client_settings
from moa_bench.harness.stage import Stage
from moa_bench.users.askers import EngineAsker, PlainAsker
from moa_bench.users.figures import UserAnswer, UsersCell, UserStats
from moa_bench.users.questions import UsersEffort, make_questions
from moa_bench.users.strategies import Strategy
from moa_bench.users.users import UserAsker, run_users

SETTLE_SECONDS = 0.5  # for the server to end what users broke off


class UsersPlan:
    """Runs users, who ask pieces of the bench's own passage. State: the text that answers each question.

    Args:
        addresses: where users connect, in turn: the server's, or of links to it.
    """

    def __init__(self, stage: Stage, effort: UsersEffort, addresses: Sequence[str]) -> None:
        passage = stage.tokenizer.encode(PASSAGE)
        self._questions = make_questions(passage, effort.prompt_tokens, max(effort.users), effort.prompts, effort.seed)
        self._effort = effort
        self._addresses = addresses
        self._vocab_size = stage.vocab_size
        self._device = stage.device
        self._settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
        self._texts: dict[tuple[int, int], list[int]] = {}

    async def write_texts(self) -> None:
        """Has each question answered once: the oracle's scripts. The server has measured its steps after that."""
        answers, _ = await self._run(Strategy("plain"), len(self._questions), None)
        self._texts = {(answer.user, answer.question): answer.tokens for answer in answers}

    async def measure(self, users: int, way: Strategy) -> UsersCell:
        """All users at once; texts must have been written."""
        cpu_s, began_s = time.process_time(), time.perf_counter()
        answers, ended_s = await self._run(way, users, self._effort.seconds)
        share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
        await asyncio.sleep(SETTLE_SECONDS)
        other_texts = sum(
            answer.tokens != self._texts[answer.user, answer.question][: len(answer.tokens)] for answer in answers
        )
        met = UserStats.of(answers, users, ended_s, self._apart_seconds(users))
        return UsersCell(users, way, met, round(share, 3), other_texts)

    def _apart_seconds(self, users: int) -> float:
        return self._effort.apart_seconds if users > 1 else 0.0

    async def _run(self, way: Strategy, users: int, seconds: float | None) -> tuple[list[UserAnswer], float]:
        async with AsyncExitStack() as stack:
            askers = [self._asker(way, user) for user in range(users)]
            for asker in askers:
                stack.push_async_callback(asker.close)
            return await run_users(
                askers,
                self._questions[:users],
                seconds,
                apart_seconds=self._apart_seconds(users) if seconds is not None else 0.0,
                think_seconds=self._effort.think_seconds,
                waits_for_all=self._effort.waits_for_all,
                seed=self._effort.seed,
            )

    def _asker(self, way: Strategy, user: int) -> UserAsker:
        address = self._addresses[user % len(self._addresses)]
        if way.drafts in ("plain", "server"):
            return PlainAsker(address, self._settings, server_drafts=way.server_drafts)
        if way.acceptance is not None:
            device_for: Callable[[int], Device] = partial(self._oracle_device, user, way.acceptance)
            tree = False
        else:
            device = self._device.for_another_conversation()
            device_for, tree = lambda question: device, client_settings().mode == "tree"
        drafting = DraftingSettings("auto" if way.server_drafts else "device", tree=tree)
        return EngineAsker(address, device_for, self._vocab_size, self._settings, drafting)

    def _oracle_device(self, user: int, acceptance: float, question: int) -> Device:
        text = (*self._questions[user][question], *self._texts[user, question])
        script = Script(text, acceptance, self._effort.seed + user, self._vocab_size)
        return with_oracle(self._device, script, self._effort.draft_ms, 1)
