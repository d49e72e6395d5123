"""Ray scales a fleet by what replicas tell of their load: up while many ask, down while one does; no answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from moa_client.link.server import Server
from moa_shared.errors import MoaError

from tests.cluster.asking import texts
from tests.cluster.conftest import Fleet

Asking = asyncio.Task[list[list[list[int]]]]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]
NAME = "scaled"
POLL_SECONDS = 0.5
SOME, MANY = 6, 13  # clients that are too many for one replica at a load of 0.7, and for two; all find room


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
    few_over, many_over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as asking:

        def ask(clients: int, addresses: Sequence[str], over: asyncio.Event) -> Asking:
            return asking.create_task(texts(fleet.model, addresses, clients, over.is_set))

        asked = [ask(1, [alone], few_over), ask(SOME - 1, [alone], many_over)]
        two = await _until([alone], 2)
        asked.append(ask(MANY - SOME, two, many_over))
        three = await _until(two, 3)
        many_over.set()
        left = await _until(three, 1)
        few_over.set()
    assert [each["address"] for each in fleet.status(NAME)["replicas"]] == left
    for answers in [answers for task in asked for answers in task.result()]:
        assert answers
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)


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
