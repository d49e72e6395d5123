"""Clients that ask a fleet without end, with the program's own engine over all addresses they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from moa_client.device.loading import Device, load_device
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.server import Server
from moa_client.settings import SECTION, ClientSettings
from moa_shared.programs.config import load_settings
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from tests.support.tiny_models import SIZES

PROMPT = [5, 17, 42, 8, 17, 42]
ANSWER_SECONDS = 60.0
READ_SECONDS = 0.01  # a piece of an answer, so that one is under way most of the time, which costs little
REST_SECONDS = 0.5  # after an answer: what fails meanwhile meets one of the others


def sampled(seed: int) -> AnswerSettings:
    return AnswerSettings(Sampling(0.7, seed=seed), max_tokens=400, ignore_end_of_text=True)


def program(model: Path) -> ClientSettings:
    """The settings of a client without a drafter."""
    return load_settings(ClientSettings, SECTION, {"model": str(model), "drafter": "none"}, environment={})


async def texts(
    model: Path,
    addresses: Sequence[str],
    clients: int,
    is_over: Callable[[], bool],
) -> list[list[list[int]]]:
    """All answers of each client, which asks for the same text again and again, and once more when it is over."""
    async with connect([Server(address, 5.0, 20.0) for address in addresses]) as fleet:
        device = load_device(program(model), await fleet.describe(), SilentProgress())
        asking = [_ask_on(fleet, device, seed, is_over) for seed in range(clients)]
        return list(await asyncio.gather(*asking))


async def one_text(model: Path, server: Server, seed: int) -> list[int]:
    """One answer of one replica."""
    async with connect([server]) as fleet:
        device = load_device(program(model), await fleet.describe(), SilentProgress())
        return (await _ask_on(fleet, device, seed, lambda: True))[0]


async def _ask_on(
    fleet: Fleet,
    device: Device,
    seed: int,
    is_over: Callable[[], bool],
) -> list[list[int]]:
    answers: list[list[int]] = []
    while True:
        was_over = is_over()
        engine = ClientEngine(fleet, device, SIZES["vocab_size"], Codec.INT4)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async for _ in engine.ask(PROMPT, sampled(seed)):
                    await asyncio.sleep(READ_SECONDS)
            answers.append(list(engine.conversation.answer))
        finally:
            await engine.close()
        if was_over:
            return answers
        await asyncio.sleep(REST_SECONDS)
