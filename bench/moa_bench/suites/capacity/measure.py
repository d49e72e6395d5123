"""Numbers of users, each in all ways, over links of each round trip; they ask pieces of the bench's own passage.

A user's questions depend on the seed and its number only, so fewer users ask what the first of more users ask.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from functools import partial

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.links import EmulatedLink, linked
from moa_bench.harness.oracle import Script, has_no_drafter, with_oracle
from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.split_client import client_settings
from moa_bench.harness.stage import Stage, staged
from moa_bench.registry import KINDS, CapacityEffort
from moa_bench.suite import JsonObject, Result, SuiteRun
from moa_bench.suites.capacity.tables import Strategy, UserAnswer, UsersCell, UserStats, make_strategies, render
from moa_bench.suites.capacity.users import EngineAsker, PlainAsker, UserAsker, run_users

__all__ = ["measure", "render"]
PASSAGE = (PACKAGED / "passage.txt").read_text("utf-8")  # about 650 tokens
SETTLE_SECONDS = 0.5  # for the server to end what users broke off
GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, fill 0 to 1 evenly at every moment


def measure(effort: CapacityEffort, run: SuiteRun) -> Result:
    links = {rtt_ms: EmulatedLink(f"RTT {rtt_ms:g} ms", rtt_ms / 2) for rtt_ms in effort.rtts_ms}
    cells: list[JsonObject] = []
    with ExitStack() as stack:
        stage = stack.enter_context(staged(run.model, run.level, run.server_cores, run.own_cores))
        has_oracles = has_no_drafter(stage.files, {}) and effort.kinds == KINDS
        ways = make_strategies(("oracle",) if has_oracles else effort.kinds, effort.acceptances)
        plan = UsersPlan(stage, effort)
        task = stack.enter_context(make_progress().task("Users", len(links) * len(ways) * len(effort.users)))
        stage.runner.run(plan.write_texts())
        for rtt_ms, link in links.items():
            with linked(link, stage.server.address, seed=effort.seed, cores=run.own_cores) as running:
                plan.address = running.address
                for users in effort.users:
                    for way in ways:
                        measured = partial(plan.measure, users, way, rtt_ms)
                        cells.append(run.keep(f"{rtt_ms:g} {users} {way.name}", measured))
                        task.advance(1)
    return {"target": stage.files.target_id, "drafter": stage.drafter.description, "cells": cells}


class UsersPlan:
    """Runs users. State: where they connect, and the text that answers each question."""

    def __init__(self, stage: Stage, effort: CapacityEffort) -> None:
        passage = stage.tokenizer.encode(PASSAGE)
        self._questions = make_questions(passage, effort.prompt_tokens, max(effort.users), effort.prompts, effort.seed)
        self._effort = effort
        self._stage = stage
        self.address = stage.server.address
        self._settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
        self._texts: dict[tuple[int, int], list[int]] = {}

    async def write_texts(self) -> None:
        """Has each question answered once: the oracle's scripts. The server has measured its steps after that."""
        answers, _ = await self._run(Strategy("plain"), len(self._questions), None)
        self._texts = {(answer.user, answer.question): answer.tokens for answer in answers}

    def measure(self, users: int, way: Strategy, rtt_ms: float) -> JsonObject:
        return asdict(self._stage.runner.run(self._measure(users, way, rtt_ms)))

    async def _measure(self, users: int, way: Strategy, rtt_ms: float) -> UsersCell:
        cpu_s, began_s = time.process_time(), time.perf_counter()
        answers, ended_s = await self._run(way, users, self._effort.seconds)
        share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
        await asyncio.sleep(SETTLE_SECONDS)
        other_texts = sum(
            answer.tokens != self._texts[answer.user, answer.question][: len(answer.tokens)] for answer in answers
        )
        met = UserStats.of(answers, users, ended_s)
        return UsersCell(users, way, met, round(share, 3), other_texts, rtt_ms)

    async def _run(self, way: Strategy, users: int, seconds: float | None) -> tuple[list[UserAnswer], float]:
        async with AsyncExitStack() as stack:
            askers = [self._asker(way, user) for user in range(users)]
            for asker in askers:
                stack.push_async_callback(asker.close)
            return await run_users(askers, self._questions[:users], seconds)

    def _asker(self, way: Strategy, user: int) -> UserAsker:
        if way.drafts in ("plain", "server"):
            return PlainAsker(self.address, self._settings, server_drafts=way.server_drafts)
        if way.acceptance is not None:
            device_for: Callable[[int], Device] = partial(self._oracle_device, user, way.acceptance)
            tree = False
        else:
            device = self._stage.device
            device_for, tree = lambda question: device, client_settings().mode == "tree"
        drafting = DraftingSettings("auto" if way.server_drafts else "device", tree=tree)
        return EngineAsker(self.address, device_for, self._stage.vocab_size, self._settings, drafting)

    def _oracle_device(self, user: int, acceptance: float, question: int) -> Device:
        text = (*self._questions[user][question], *self._texts[user, question])
        script = Script(text, acceptance, self._effort.seed + user, self._stage.vocab_size)
        return with_oracle(self._stage.device, script, self._effort.draft_ms)


def make_questions(
    passage: Sequence[int], lengths: tuple[int, int], users: int, each: int, seed: int
) -> list[list[list[int]]]:
    """Prompts [users][each] as token ids: pieces of a passage, repeated where it is too short.

    Each begins elsewhere, so that no two share a beginning for long.
    """

    def piece(start: int, length: int) -> list[int]:
        return [passage[(start + place) % len(passage)] for place in range(length)]

    offset = random.Random(seed).random()
    questions, (shortest, longest) = [], lengths
    for user in range(users):
        rng = random.Random(f"{seed}:{user}")
        shares = [(offset + GOLDEN * user + number / each) % 1.0 for number in range(each)]
        of_prompts = [round(shortest * float((longest / shortest) ** share)) for share in shares]  # logarithmic
        questions.append([piece(rng.randrange(len(passage)), length) for length in of_prompts])
    return questions
