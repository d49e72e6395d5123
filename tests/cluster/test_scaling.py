"""Ray scales a fleet by what replicas tell of their load: up while many ask, down while one does; no answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio
import pytest
from moa_client.link.server import Server
from moa_shared.errors import MoaError

from tests.cluster.asking import texts
from tests.cluster.conftest import Fleet
from tests.cluster.holder import Holder

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]
NAME = "scaled"
POLL_SECONDS = 0.5
ASKING = 2  # clients, which find room whatever else is held
HELD = 6  # of a replica's eight answers: a load beyond 0.7


@pytest.fixture
def alone(fleet: Fleet) -> Iterator[str]:
    """The address of the one replica of another fleet, which has room for eight answers."""
    code, out, err = fleet.command(
        *fleet.up(
            "--name", NAME, "--port", 0, "--min-replicas", 1, "--max-replicas", 3, "--cpus", 0.25, "--max-streams", 8,
            "--upscale-seconds", 1, "--downscale-seconds", 5, "--peer-requests-per-minute", 0,
        )
    )  # fmt: skip
    try:
        assert code == 0, err
        yield out.strip()
    finally:
        fleet.command("down", "--name", NAME)


async def test_replicas_follow_a_load_that_rises_and_falls_and_no_answer_is_lost(fleet: Fleet, alone: str) -> None:
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, [alone], ASKING, over.is_set))
    async with held_answers(alone):
        two = await _until([alone], 2)
        async with held_answers(two[1]):
            three = await _until(two, 3)
    left = await _until(three, 1)
    over.set()
    assert [each["address"] for each in fleet.status(NAME)["replicas"]] == left
    for answers in await asking:
        assert answers
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)


@asynccontextmanager
async def held_answers(address: str) -> AsyncIterator[None]:
    """Answers of a replica that wait for drafts: a load that takes no time of the processor."""
    async with grpc.aio.insecure_channel(address) as channel, AsyncExitStack() as held:
        for _ in range(HELD):
            held.push_async_callback((await Holder(channel).hold(400)).bye)
        yield


async def _until(known: Sequence[str], replicas: int) -> list[str]:
    """Addresses of the replicas once so many answer: each names the others, as clients learn it."""
    while True:
        answering, named = [], list(known)
        for address in known:
            link = Server(address, 5.0, 20.0)
            try:
                named += (await link.describe()).servers
                answering.append(address)
            except MoaError:
                continue  # it has ended
            finally:
                await link.close()
        if len(answering) == replicas:
            return answering
        known = list(dict.fromkeys(named))
        await asyncio.sleep(POLL_SECONDS)
