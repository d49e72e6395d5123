"""Many sessions in one forward: each gets the target's own text, whatever the others do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.engine.stepper import Stepper, Work
from moa_server.running.running_server import RunningServer
from moa_server.target import Target, TargetOutput
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import CONTEXT, VOCAB, Peer, make_host, plain_text, serving, toy_source
from tests.support.tiny_models import tiny_kernel_target, tiny_model

PEERS = 12
POISON = (1, 13, 2)  # a prompt whose forward fails


class CountingStepper(Stepper):
    """Fails in forwards that hold the poison, or more rows than it has room for; counts sessions in forwards."""

    most_rows = 10_000

    def __init__(self, target: Target) -> None:
        super().__init__(target, [toy_source(target)])
        self.sessions: list[int] = []

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        self.sessions.append(len(work))
        if any(each.plan.feed == POISON for each in work):
            raise RuntimeError("the device is on fire")
        if sum(each.rows for each in work) > self.most_rows:
            raise MemoryError
        return super().forward_all(work)


@pytest.fixture(scope="module")
def kernel_target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


@pytest.fixture
def stepper(kernel_target: Target) -> CountingStepper:
    return CountingStepper(kernel_target)


@pytest.fixture
async def running(kernel_target: Target, stepper: CountingStepper) -> AsyncIterator[RunningServer]:
    async with serving(make_host(kernel_target, stepper=stepper, prefill_chunk=32)) as running:
        yield running


@pytest.fixture
async def channel(running: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield channel


class Client:
    """Asks, and drafts trees of which some nodes are right."""

    def __init__(self, channel: grpc.aio.Channel, target: Target, seed: int) -> None:
        self.chance = random.Random(seed)
        self.prompt = self.any_tokens(self.chance.choice([3, 20, 90]))
        temperature = self.chance.choice([0.0, 1.0])
        self.settings = AnswerSettings(Sampling(temperature, seed=seed), max_tokens=40, ignore_end_of_text=True)
        self.expected = plain_text(target, self.prompt, self.settings)[0]
        self.peer = Peer(channel)
        self.opened: pb.Opened | None = None

    def any_tokens(self, count: int) -> list[int]:
        return [self.chance.randrange(VOCAB) for _ in range(count)]

    @property
    def answer(self) -> list[int]:
        return self.peer.tokens[len(self.prompt) :]

    async def begin(self) -> None:
        self.opened = await self.peer.open(run_ahead=self.chance.random() < 0.5, memory=self.chance.random() < 0.7)
        await self.peer.ask(self.prompt, self.settings)

    async def draft(self) -> None:
        """A draft with a right path of some length in it."""
        done = len(self.answer)
        right = self.expected[done : done + self.chance.randrange(5)]
        wrong = [token for token in self.any_tokens(2) if token not in right[:1]][:1]
        tokens, parents = [*right, *wrong], [*range(-1, len(right) - 1), *[-1] * len(wrong)]
        await self.peer.draft(tokens, parents)

    async def finish(self, most: int = 1000) -> None:
        """Reads the answer, or so many verdicts of it."""
        for _ in range(most):
            if self.peer.verdicts and self.peer.verdicts[-1].finish:
                return
            await self.peer.verdict()
            if not self.peer.verdicts[-1].finish:
                await self.draft()

    async def run(self) -> None:
        await self.begin()
        await self.finish()
        assert self.answer == self.expected


@pytest.mark.parametrize("seed", range(3))
async def test_every_session_gets_the_targets_text(
    channel: grpc.aio.Channel, kernel_target: Target, stepper: CountingStepper, seed: int
) -> None:
    clients = [Client(channel, kernel_target, 100 * seed + number) for number in range(PEERS)]
    await asyncio.gather(*(client.run() for client in clients))
    assert max(stepper.sessions) > PEERS // 2
    assert any(verdict.accepted for client in clients for verdict in client.peer.verdicts)


async def test_one_session_whose_forward_fails_is_lost_alone(
    channel: grpc.aio.Channel, kernel_target: Target, running: RunningServer
) -> None:
    clients = [Client(channel, kernel_target, number) for number in range(PEERS)]
    bad = Peer(channel)
    await bad.open(run_ahead=True)
    runs = asyncio.gather(*(client.run() for client in clients))
    await clients[0].peer.call.initial_metadata()
    await bad.ask(POISON, AnswerSettings(max_tokens=5))
    with pytest.raises(grpc.aio.AioRpcError):
        await bad.done()
    await runs
    assert len(running.host.services.registry) == PEERS


async def test_a_forward_without_room_is_run_in_parts(
    channel: grpc.aio.Channel, kernel_target: Target, stepper: CountingStepper
) -> None:
    stepper.most_rows = 40
    await asyncio.gather(*(Client(channel, kernel_target, number).run() for number in range(PEERS)))
    assert max(stepper.sessions) > 2


async def test_sessions_that_stop_break_or_are_taken_over_disturb_nobody(
    channel: grpc.aio.Channel, kernel_target: Target
) -> None:
    clients = [Client(channel, kernel_target, number) for number in range(PEERS)]

    async def stop(client: Client) -> None:
        await client.begin()
        await client.finish(3)
        await client.peer.send(stop=pb.Stop(ask=client.peer.asks))
        await client.finish()
        assert client.answer == client.expected[: len(client.answer)]

    async def leave(client: Client) -> None:
        await client.begin()
        await client.finish(2)
        client.peer.call.cancel()

    async def take_over(client: Client) -> None:
        await client.begin()
        await client.finish(2)
        assert client.opened is not None
        held, settings = list(client.peer.tokens), client.settings
        again = Peer(channel)
        again.append(held)
        ask = again.ask_message([], settings, answer_start=len(client.prompt))
        again.tokens, again.hashes = [], type(again.hashes)()
        await again.open(tokens=held, resume_token=client.opened.resume_token, run_ahead=True, ask=ask)
        client.peer = again
        await client.finish()
        assert client.answer == client.expected

    ways = [stop, leave, take_over, Client.run]
    await asyncio.gather(*(ways[number % 4](client) for number, client in enumerate(clients)))
