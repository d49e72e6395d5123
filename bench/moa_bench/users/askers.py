"""Ways of one user to an answer: plain streaming, and the client program's engine with a drafter of the user's own.

Each has a connection of its own, as devices have. All users' drafters share the weights and, in this process, the core;
each user in the world has a core of its own, so with many users a real drafter shows what slow devices are worth. A
draft step of an oracle is a wait.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
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

from moa_bench.harness.answers import OWN_CONNECTION
from moa_bench.harness.split_client import SETTLE_EVERY_S, client_settings
from moa_bench.users.figures import UserAnswer


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
    """Asks through a `ClientEngine`, in a new conversation each time.

    Args:
        device_for: this user's device for a question, by its number.
        settings: of each answer.
        drafting: who drafts, and how.
    """

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
        self._byes: list[asyncio.Task[None]] = []  # they go on while a user asks the next question
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
        while engine.unsettled:  # the device took the server for lost, and wrote the end
            async for settled in engine.settle():
                if isinstance(settled, Settled) and self._reading is answer:
                    answer.on_tokens(time.perf_counter(), settled.tokens)
            await asyncio.sleep(SETTLE_EVERY_S)


async def _leave(engine: ClientEngine, answering: asyncio.Task[None]) -> None:
    """Ends the conversation; an answer that its user has broken off too, which the server would go on with."""
    if not answering.done():
        engine.stop()
        await asyncio.wait((answering,))
    await engine.close()
