"""Hostile clients: random frames in random states. Whatever they send, the server stays whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, cast

import grpc.aio
import pytest
import structlog
from moa.v1 import moa_pb2 as pb
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import CODE_KEY
from moa_shared.protocol.prefix_hash import SHORT_HASH

from tests.net.server_peer import END, VOCAB, Peer, generate, plain_text, until

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=10, ignore_end_of_text=True)
CROSSED = "Internal error from Core"  # what grpc.aio's client makes of a write that crossed with the refusal


def number(rng: random.Random) -> int:
    return rng.choice([0, 1, 2, 5, 6, 63, 64, 200, 1 << 20, (1 << 32) - 1])


def tokens(rng: random.Random) -> list[int]:
    most = VOCAB if rng.random() < 0.9 else 1 << 32
    return [rng.randrange(most) for _ in range(rng.choice([0, 1, 3, 80]))]


def frame(rng: random.Random, peer: Peer) -> dict[str, Any]:
    """A frame that is often nearly right: nonsense is refused early and tries little."""
    held = len(peer.tokens)
    base = rng.choice([held, held, max(0, held - 1), number(rng)])
    whole = peer.hashes.at(base) if base <= held and rng.random() < 0.9 else rng.getrandbits(64)
    words = tokens(rng)
    parents = [rng.randrange(node + 2) for node in range(len(words))] if rng.random() < 0.5 else []
    draft = pb.Draft(
        epoch=rng.choice([0, 0, 1, number(rng)]),
        base=base,
        prefix_hash=whole & SHORT_HASH,
        first_node=rng.choice([0, 0, 1, number(rng)]),
        tokens=words,
        parents=parents,
    )
    sampling = pb.Sampling(temperature=rng.choice([0.0, 1.0, -1.0]), max_tokens=rng.choice([0, 3, number(rng)]))
    start = rng.choice([0, 1, held])
    ask = pb.Ask(
        base=base, prefix_hash=whole, tokens=words, sampling=sampling, answer_start=start, id=rng.choice([1, 1, 2, 0])
    )
    return rng.choice(
        [
            {"draft": draft},
            {"draft": draft},
            {"ask": ask},
            {"ack": pb.Ack(committed=rng.choice([held, number(rng)]))},
            {"credit": pb.Credit(bytes=number(rng))},
            {"set_codec": pb.SetCodec(codec=cast(pb.Codec, rng.randrange(1, 5)))},
            {"set_memory": pb.SetMemory(thin=pb.ThinMemory(states=number(rng), every=number(rng)))},
            {"beat": pb.Beat(stamp=number(rng))},
            {"stop": pb.Stop(ask=rng.choice([1, 2]))},
            {"bye": pb.Bye()},
        ]
    )


async def attack(channel: grpc.aio.Channel, seed: int) -> str:
    """How one hostile stream ended."""
    rng = random.Random(seed)
    peer = Peer(channel)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream may end while we write
        await peer.open(run_ahead=rng.random() < 0.5, reused_state=rng.random() < 0.5, credit_bytes=number(rng))
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        for _ in range(rng.randrange(1, 12)):
            await peer.send(**frame(rng, peer))
        await peer.call.done_writing()
        while await peer.call.read() is not END:
            pass
    if await peer.call.code() is grpc.StatusCode.OK:
        return "ok"
    trailing = dict(await peer.call.trailing_metadata())
    return str(trailing.get(CODE_KEY, await peer.call.details()))


@pytest.mark.parametrize("round_number", range(4))
async def test_random_frames_harm_nobody(
    server: RunningServer, channel: grpc.aio.Channel, target: Target, round_number: int
) -> None:
    seeds = range(40 * round_number, 40 * round_number + 40)
    with structlog.testing.capture_logs() as events:
        for first in seeds[::8]:
            ends = await asyncio.gather(*(attack(channel, seed) for seed in range(first, first + 8)))
            assert set(ends) <= {"ok", CROSSED, "protocol", "tree", "token_range", "context_length", "config"}
    assert [event for event in events if event["log_level"] == "error"] == []
    assert {event["event"] for event in events} >= {"call refused", "session detached", "session ended"}
    assert await generate(channel, PROMPT, GREEDY) == plain_text(target, PROMPT, GREEDY)
    await until(lambda: len(server.host.services.registry) == server.host.services.registry.detached)
