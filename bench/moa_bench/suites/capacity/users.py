"""Users who ask one question after the other, in a closed loop, and their ways to an answer.

Each has a connection of its own, as devices have. All users' drafters share the weights and, in this process, the core,
so with many users a real drafter shows what slow devices are worth. A draft step of an oracle is a wait.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
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
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.protobuf_messages import settings_to_proto

from moa_bench.harness.split_client import OWN_CONNECTION, client_settings
from moa_bench.suites.capacity.tables import UserAnswer


class PlainAsker:
    """Calls `Generate` at "host:port", each time with the same settings."""

    def __init__(self, address: str, settings: AnswerSettings, *, server_drafts: bool = False) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        self._stub: Any = moa_pb2_grpc.MoaStub(self._channel)
        self._settings = settings
        self._server_drafts = server_drafts

    async def close(self) -> None:
        await self._channel.close(None)

    async def ask(self, prompt: Sequence[int], answer: UserAnswer) -> None:
        request = pb.GenerateRequest(
            tokens=prompt, sampling=settings_to_proto(self._settings), server_drafts=self._server_drafts
        )
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
        program = client_settings(server=address)
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

    async def ask(self, prompt: Sequence[int], answer: UserAnswer) -> None:
        device = self._device_for(answer.question)
        engine = ClientEngine(self._fleet, device, self._vocab_size, Codec.INT4, self._drafting)
        self._reading = answer
        answering = asyncio.create_task(self._answer(engine, prompt, answer))
        try:
            await asyncio.shield(answering)
        finally:
            self._reading = None
            self._byes.append(asyncio.create_task(_leave(engine, answering)))

    async def _answer(self, engine: ClientEngine, prompt: Sequence[int], answer: UserAnswer) -> None:
        async for event in engine.ask(prompt, self._settings):
            if isinstance(event, Committed) and self._reading is answer:
                answer.on_tokens(time.perf_counter(), event.tokens)
        # The device may have taken the server for lost, and written the end.
        async for settled in engine.attend(lambda: not engine.answers.unsettled):
            if isinstance(settled, Settled) and self._reading is answer:
                answer.on_tokens(time.perf_counter(), settled.tokens)


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
            await asker.ask(own[turn % len(own)], answer)
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
