"""Clients of a fleet: those that ask without end, with the program's own engine, and answers that wait for drafts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, load_device
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import PLAIN, Security
from moa_client.link.server import Server
from moa_client.settings import SECTION, ClientSettings
from moa_shared.programs.config import load_settings
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import PROMPT, Peer
from tests.support.tiny_models import SIZES

TOKENS = 400  # of an answer
ANSWER_SECONDS = 300.0  # only a hang ends there
READ_SECONDS = 0.01  # a piece of an answer, so that one is under way most of the time, which costs little
REST_SECONDS = 0.5  # after an answer: what fails meanwhile meets one of the others


def server_at(address: str, security: Security = PLAIN) -> Server:
    return Server(address, 5.0, 20.0, security)


async def texts(model: Path, servers: Sequence[Server], clients: int, over: asyncio.Event) -> list[list[list[int]]]:
    """All answers of each client, which asks for the same text again and again, and once more when it is over."""
    named = {"model": str(model), "drafter": "none"}
    async with connect(list(servers)) as fleet:
        settings = load_settings(ClientSettings, SECTION, named, environment={})
        device = load_device(settings, await fleet.describe(), Progress())
        return list(await asyncio.gather(*(_ask_on(fleet, device, seed, over) for seed in range(clients))))


async def _ask_on(fleet: Fleet, device: Device, seed: int, over: asyncio.Event) -> list[list[int]]:
    answers: list[list[int]] = []
    while True:
        was_over = over.is_set()
        engine = ClientEngine(fleet, device, SIZES["vocab_size"], Codec.INT4)
        sampled = AnswerSettings(Sampling(0.7, seed=seed), max_tokens=TOKENS, ignore_end_of_text=True)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async for _ in engine.ask(PROMPT, sampled):
                    await asyncio.sleep(READ_SECONDS)
            answers.append(list(engine.conversation.answer))
        finally:
            await engine.close()
        if was_over:
            return answers
        await asyncio.sleep(REST_SECONDS)


def check_whole(texts: list[list[list[int]]]) -> None:
    """Each client has got answers, all of them the same whole text."""
    for answers in texts:
        assert answers
        assert all(answer == answers[0] and len(answer) == TOKENS for answer in answers)


@asynccontextmanager
async def held_answers(address: str, count: int) -> AsyncIterator[None]:
    """Answers of a replica that wait for drafts: a load that takes no time of the processor."""
    identity = (await server_at(address).describe()).identity
    async with grpc.aio.insecure_channel(address) as channel, AsyncExitStack() as held:
        for _ in range(count):
            peer = Peer(channel)
            ask = peer.ask_message(PROMPT, AnswerSettings(max_tokens=TOKENS, ignore_end_of_text=True))
            await peer.send(open=pb.Open(protocol_version=PROTOCOL_VERSION, identity=identity, ask=ask))
            while not peer.verdicts:
                await peer.receive()
            held.push_async_callback(peer.bye)
        yield
