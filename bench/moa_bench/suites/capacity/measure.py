"""`moa-bench capacity`: more and more users on one server, all in one process on the other core, over links.

Each has a connection of its own, as devices have, and asks one question after the other: pieces of the bench's own
passage, which depend on the seed and the user's number only, so fewer users ask what the first of more users ask. All
users' drafters share the weights and, in this process, the core, so with many users a real drafter shows what slow
devices are worth. A draft step of an oracle is a wait.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Committed, Settled
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto

from moa_bench.harness.links import EmulatedLink, linked
from moa_bench.harness.oracle import Script, has_no_drafter, with_oracle
from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.split_client import OWN_CONNECTION
from moa_bench.harness.stage import Stage, staged
from moa_bench.registry import KINDS, CapacityEffort
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.capacity.tables import (
    Strategy,
    UserAnswer,
    UsersCell,
    UserStats,
    make_strategies,
    mean_cell,
    render,
)

GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, fill 0 to 1 evenly at every moment


class PlainAsker:
    """Calls `Generate` at "host:port"."""

    def __init__(self, address: str, settings: AnswerSettings, *, server_drafts: bool = False) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        self._stub: Any = moa_pb2_grpc.MoaStub(self._channel)
        self._settings = settings
        self._server_drafts = server_drafts

    async def close(self) -> None:
        await self._channel.close(None)

    async def ask(self, prompt: Sequence[int], answer: UserAnswer, share: float = 1.0) -> None:
        """`share`: of the answer, after which it ends."""
        sampling = settings_to_proto(_shortened(self._settings, share))
        request = pb.GenerateRequest(tokens=prompt, sampling=sampling, server_drafts=self._server_drafts)
        try:
            async for response in self._stub.Generate(request):
                answer.on_tokens(time.perf_counter(), response.tokens)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


class EngineAsker:
    """The client program's engine; a user who breaks off leaves, and asks the next question meanwhile."""

    def __init__(
        self,
        address: str,
        device_for: Callable[[int], Device],
        vocab_size: int,
        settings: AnswerSettings,
        drafting: DraftingSettings,
    ) -> None:
        program = ClientSettings(server=address)
        self._fleet = Fleet([Server(address, program.connect_seconds, program.silence_seconds)])
        self._device_for = device_for
        self._vocab_size = vocab_size
        self._settings = settings
        self._drafting = drafting
        self._byes: list[asyncio.Task[None]] = []
        self._reading: UserAnswer | None = None

    async def close(self) -> None:
        await asyncio.gather(*self._byes)
        await self._fleet.close()

    async def ask(self, prompt: Sequence[int], answer: UserAnswer, share: float = 1.0) -> None:
        """`share`: of the answer, after which it ends."""
        device = self._device_for(answer.question)
        engine = ClientEngine(self._fleet, device, self._vocab_size, Codec.INT4, self._drafting)
        self._reading = answer
        answering = asyncio.create_task(self._answer(engine, prompt, answer, _shortened(self._settings, share)))
        try:
            await asyncio.shield(answering)
        finally:
            self._reading = None
            self._byes.append(asyncio.create_task(_leave(engine, answering)))

    async def _answer(
        self, engine: ClientEngine, prompt: Sequence[int], answer: UserAnswer, settings: AnswerSettings
    ) -> None:
        async for event in engine.ask(prompt, settings):
            if isinstance(event, Committed) and self._reading is answer:
                answer.on_tokens(time.perf_counter(), event.tokens)
        # The device may have taken the server for lost, and written the end.
        async for settled in engine.attend(lambda: not engine.answers.unsettled):
            if isinstance(settled, Settled) and self._reading is answer:
                answer.on_tokens(time.perf_counter(), settled.tokens)


def _shortened(settings: AnswerSettings, share: float) -> AnswerSettings:
    return replace(settings, max_tokens=max(1, round(share * settings.max_tokens)))


async def _leave(engine: ClientEngine, answering: asyncio.Task[None]) -> None:
    """Ends the conversation; an answer that its user has broken off too, which the server would continue."""
    if not answering.done():
        engine.stop()
        await asyncio.wait((answering,))
    await engine.close()


UserAsker = PlainAsker | EngineAsker


async def run_users(
    askers: Sequence[UserAsker], questions: Sequence[Sequence[Sequence[int]]], seconds: float | None
) -> tuple[list[UserAnswer], float]:
    """Let all users ask, each its own questions in turn.

    The first answers end one after the other, so that users do not go on in step: with 64 of them all prompts would
    come at once, and what is measured would depend on where in an answer the time ends.

    Args:
        questions: [users][questions] prompts.
        seconds: until all break off, or longer, until one answer says how fast text comes; None: each question is asked
            once, and nothing is broken off.

    Returns:
        All answers, those broken off included, and when the users ended, on the clock of the answers.
    """
    answers: list[UserAnswer] = []
    has_rate = asyncio.Event()

    async def use(user: int, asker: UserAsker) -> None:
        own = questions[user]
        for turn in range(len(own)) if seconds is None else count():
            answer = UserAnswer(user, turn % len(own), time.perf_counter(), on_rate=has_rate.set)
            answers.append(answer)
            share = 1.0 if turn or seconds is None else 1.0 - GOLDEN * user % 1.0
            await asker.ask(own[turn % len(own)], answer, share)
            answer.on_end()

    try:
        async with asyncio.TaskGroup() as group:
            users = [group.create_task(use(user, asker)) for user, asker in enumerate(askers)]
            if seconds is None:
                await asyncio.wait(users)
            else:
                await asyncio.sleep(seconds)
                await has_rate.wait()  # on a slow machine the first prompts take longer
            ended_s = time.perf_counter()
            for task in users:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return answers, ended_s


__all__ = ["measure", "render"]
PASSAGE = (PACKAGED / "passage.txt").read_text("utf-8")  # about 650 tokens
SETTLE_SECONDS = 0.5  # for the server to end what users broke off


def measure(effort: CapacityEffort, run: SuiteRun) -> Result:
    links = {rtt_ms: EmulatedLink(f"RTT {rtt_ms:g} ms", rtt_ms / 2) for rtt_ms in effort.rtts_ms}
    cells: list[Result] = []
    with ExitStack() as stack:
        stage = stack.enter_context(staged(run.model, run.level, run.server_cores, run.own_cores))
        has_oracles = has_no_drafter(stage.files, {}) and effort.kinds == KINDS
        ways = make_strategies(("oracle",) if has_oracles else effort.kinds, effort.acceptances)
        plan = UsersPlan(stage, effort)
        parts = len(links) * len(ways) * len(effort.users) * effort.rounds
        task = stack.enter_context(make_progress().task("Users", parts))
        stage.runner.run(plan.write_texts())
        for rtt_ms, link in links.items():
            with linked(link, stage.server.address, seed=effort.seed, cores=run.own_cores) as running:
                plan.address = running.address
                for users in effort.users:
                    met: list[list[Result]] = [[] for _ in ways]
                    for number in range(1, effort.rounds + 1):
                        for way, each in list(zip(ways, met, strict=True))[:: 1 if number % 2 else -1]:
                            measured = partial(plan.measure, users, way, rtt_ms)
                            each.append(run.keep(f"{rtt_ms:g} {users} {way.name} {number}", measured))
                            task.advance(1)
                    cells += [mean_cell(each) for each in met]
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

    def measure(self, users: int, way: Strategy, rtt_ms: float) -> Result:
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
            device_for, tree = lambda question: device, ClientSettings().mode == "tree"
        drafting = DraftingSettings("auto" if way.server_drafts else "device", tree=tree)
        return EngineAsker(self.address, device_for, self._stage.vocab_size, self._settings, drafting)

    def _oracle_device(self, user: int, acceptance: float, question: int) -> Device:
        text = (*self._questions[user][question], *self._texts[user, question])
        script = Script(text, acceptance, self._effort.seed + user, self._stage.vocab_size)
        return with_oracle(self._stage.device, script, self._effort.draft_ms)


def make_questions(
    passage: Sequence[int], lengths: Sequence[int], users: int, each: int, seed: int
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
