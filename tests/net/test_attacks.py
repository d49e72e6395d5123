"""What one client may do to the others, as fast as it goes: an honest answer next to it is whole, and nothing is kept."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import count, repeat
from typing import Any, cast

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings

from tests.net.server_peer import (
    CONTEXT,
    IDENTITY,
    Peer,
    channel_to,
    generate,
    make_host,
    plain_text,
    serving,
    tiny_target,
    until,
)

PROMPT = [5, 17, 33, 2, 64]
HONEST = AnswerSettings(max_tokens=60, ignore_end_of_text=True)
SHORT = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
TOGETHER = 16  # streams of one attack: as many as the server has sessions
FAILURES = (grpc.RpcError, asyncio.InvalidStateError, OSError)  # what a call that the server has ended raises

SETTINGS: dict[str, Any] = {"detached_seconds": 0.0, "share_prefixes": "off"}

Attack = Callable[[RunningServer, grpc.aio.Channel], Awaitable[None]]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


async def opened(channel: grpc.aio.Channel, **fields: Any) -> Peer:
    peer = Peer(channel)
    await peer.open(run_ahead=True, credit_bytes=1 << 30, **fields)
    return peer


def draft(nodes: int) -> dict[str, pb.Draft]:
    return {"draft": pb.Draft(base=1 << 30, tokens=[1] * nodes)}


def ask(seed: int) -> dict[str, pb.Ask]:
    return {"ask": pb.Ask(id=seed + 1, tokens=[1] * 50, sampling=pb.Sampling(temperature=1.0, seed=seed))}


def flood(frames: Iterable[dict[str, Any]]) -> Attack:
    """Frames on one stream as fast as it goes; nothing is read."""

    async def send(server: RunningServer, channel: grpc.aio.Channel) -> None:
        peer = await opened(channel)
        for frame in frames:
            await peer.send(**frame)
        await peer.done()

    return send


async def random_bytes(server: RunningServer, channel: grpc.aio.Channel) -> None:
    peer = await opened(channel)
    await peer.send_bytes(os.urandom(1000))
    await peer.done()


async def idle_chats(server: RunningServer, channel: grpc.aio.Channel) -> None:
    peers = [await opened(channel) for _ in range(TOGETHER)]
    await asyncio.gather(*(peer.call.read() for peer in peers))


async def long_opens(server: RunningServer, channel: grpc.aio.Channel) -> None:
    (await opened(channel, tokens=[1] * (CONTEXT - 1))).call.cancel()


async def refused_opens(server: RunningServer, channel: grpc.aio.Channel) -> None:
    identity = pb.Identity(target_id="n" * 900_000, target_fingerprint=bytes(32))
    await Peer(channel).open(identity=identity)


async def cancelled_opens(server: RunningServer, channel: grpc.aio.Channel) -> None:
    peers = [Peer(channel) for _ in range(4)]
    for peer in peers:
        await peer.send(open=pb.Open(protocol_version=1, identity=IDENTITY))
    for peer in peers:
        peer.call.cancel()


async def unopened_streams(server: RunningServer, channel: grpc.aio.Channel) -> None:
    await asyncio.gather(*(Peer(channel).call.read() for _ in range(100)), return_exceptions=True)


async def connections(server: RunningServer, channel: grpc.aio.Channel) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
        await asyncio.sleep(1.0)


async def metadata(server: RunningServer, channel: grpc.aio.Channel) -> None:
    await Peer(channel, metadata=(("x", "y" * 100_000),)).call.read()


async def describes(server: RunningServer, channel: grpc.aio.Channel) -> None:
    call = cast(Any, channel).unary_unary("/moa.v1.Moa/Describe")
    await asyncio.gather(*(call(b"") for _ in range(TOGETHER)))


ATTACKS: dict[str, Attack] = {
    "stale drafts of a whole context": flood(repeat(draft(CONTEXT))),
    "drafts of a million tokens": flood([draft(1_000_000)]),
    "beats without end": flood({"beat": pb.Beat(stamp=stamp)} for stamp in count()),
    "the same question again and again": flood(repeat(ask(0))),
    "another question each time": flood(ask(seed) for seed in count()),
    "random bytes": random_bytes,
    "16 chats that ask nothing": idle_chats,
    "Opens of a whole context, cancelled": long_opens,
    "Opens refused, with a name of 900 kB": refused_opens,
    "Opens that are cancelled": cancelled_opens,
    "100 streams without an Open": unopened_streams,
    "100 connections that say nothing": connections,
    "100 kB of metadata": metadata,
    "Describe without end": describes,
}


async def keep_attacking(attack: Attack, server: RunningServer) -> None:
    """Attacks until it is cancelled; what the server ends is begun again."""
    async with channel_to(server) as channel:
        while True:
            with suppress(*FAILURES):
                await attack(server, channel)
            await asyncio.sleep(0.01)


def nothing_is_kept(server: RunningServer) -> Callable[[], bool]:
    services = server.host.services
    return lambda: len(services.registry) == 0 and services.pool.promised == 0


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_honest_answer_is_whole_next_to_an_attack(target: Target, name: str) -> None:
    expected = plain_text(target, PROMPT, HONEST)
    async with serving(make_host(target, **SETTINGS)) as server, channel_to(server) as channel:
        attacker = asyncio.create_task(keep_attacking(ATTACKS[name], server))
        for _ in range(3):
            assert await generate(channel, PROMPT, HONEST) == expected
        attacker.cancel()
        await asyncio.gather(attacker, return_exceptions=True)
        await until(nothing_is_kept(server))
        assert await generate(channel, PROMPT, HONEST) == expected


async def bye(peer: Peer) -> None:
    await peer.bye()


async def stop(peer: Peer) -> None:
    await peer.send(stop=pb.Stop())
    await peer.bye()


async def cut(peer: Peer) -> None:
    peer.call.cancel()


async def nothing_asked(peer: Peer) -> None:
    await peer.bye()


@pytest.mark.parametrize("leave", [bye, stop, cut, nothing_asked])
async def test_nothing_is_kept_of_sessions_that_are_left(
    target: Target, leave: Callable[[Peer], Awaitable[None]]
) -> None:
    async with serving(make_host(target, **SETTINGS)) as server, channel_to(server) as channel:
        for _ in range(3):
            peers = [await opened(channel) for _ in range(4)]
            if leave is not nothing_asked:
                for peer in peers:
                    await peer.ask(PROMPT, SHORT)
                    await peer.verdict()
            await asyncio.gather(*map(leave, peers))
            await until(nothing_is_kept(server))
