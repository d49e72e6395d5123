"""What clients must not do: what they must not send is refused in words and ends that stream alone; and attacks, as fast as they go,
harm no honest answer next to them and leave nothing behind.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import count, repeat
from typing import Any, cast

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.access.limits import Caller
from moa_server.app import RunningServer
from moa_server.service.converse import ConverseStream
from moa_server.verifier import Target
from moa_shared import errors
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_from_rpc
from moa_shared.protocol.messages import AnswerSettings, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.protobuf_messages import settings_to_proto

from tests.net.server_peer import (
    CONTEXT,
    GREEDY,
    IDENTITY,
    OWN,
    PROMPT,
    VOCAB,
    Peer,
    channel_to,
    generate,
    make_host,
    plain_text,
    serving,
    until,
)

HONEST = AnswerSettings(max_tokens=60, ignore_end_of_text=True)
TOGETHER = 16  # streams of one attack: as many as the server has sessions
FAILURES = (grpc.RpcError, asyncio.InvalidStateError, OSError)  # what a call that the server has ended raises

SETTINGS: dict[str, Any] = {"detached_seconds": 0.0, "share_prefixes": "off"}

Attack = Callable[[RunningServer, grpc.aio.Channel], Awaitable[None]]


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
    """Attacks over a connection of its own until it is cancelled; what the server ends is begun again."""
    async with channel_to(server, OWN) as channel:
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


@pytest.fixture
async def bystander(server: RunningServer, channel: grpc.aio.Channel, target: Target) -> AsyncIterator[Peer]:
    """Another client in the middle of an answer, which must come out right whatever happens beside it."""
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.verdict()
    yield peer
    assert await peer.finish(in_rounds=True) == plain_text(target, PROMPT, GREEDY)[0]
    assert len(server.host.services.registry) == 1  # the refused stream left nothing behind


async def refused(peer: Peer) -> tuple[errors.MoaError, grpc.StatusCode]:
    """The error that the stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.done()
    return error_from_rpc(caught.value), caught.value.code()


Send = Callable[[Peer], Awaitable[None]]


def ask_with(**changes: Any) -> Send:
    async def send(peer: Peer) -> None:
        message = peer.ask_message([1, 2], GREEDY)
        message.MergeFrom(pb.Ask(**changes))
        await peer.send(ask=message)

    return send


def frame(**fields: Any) -> Send:
    return lambda peer: peer.send(**fields)


def opening(**fields: Any) -> Send:
    async def send(peer: Peer) -> None:
        with suppress(grpc.aio.AioRpcError):  # it comes again
            await peer.open(**fields)

    return send


OTHER = b"x" * 32
FIRST_FRAMES: list[tuple[Send, type[errors.MoaError], str]] = [
    (lambda peer: peer.send_bytes(b"\xff\xff\xff"), errors.ProtocolError, "got 3 bytes that do not parse"),
    (lambda peer: peer.send_bytes(b""), errors.ProtocolError, "got an empty or unknown one"),
    (lambda peer: peer.ask(PROMPT, GREEDY), errors.ProtocolError, "Expected Open as the first frame, got ask"),
    (frame(bye=pb.Bye()), errors.ProtocolError, "Expected Open as the first frame, got bye"),
    (opening(protocol_version=99), errors.MismatchError, "the client has 99. Update moa on the server."),
    (opening(identity=pb.Identity(target_fingerprint=OTHER)), errors.MismatchError, "The target model does not match"),
    (
        opening(identity=pb.Identity(target_id="n" * 60_000, target_fingerprint=OTHER)),
        errors.MismatchError,
        f"{'n' * 80} (",
    ),
    (opening(identity=pb.Identity(tokenizer_hash=OTHER)), errors.MismatchError, "The tokenizer does not match"),
    (opening(identity=pb.Identity(drafter_fingerprint=OTHER)), errors.MismatchError, "The drafter does not match"),
    (opening(memory=False, codecs=[0]), errors.MismatchError, "the client has none of these"),
    (opening(tokens=[1, VOCAB]), errors.TokenRangeError, "Token 1 is 97, outside the vocabulary"),
    (opening(tokens=[1], memory_from=2), errors.ProtocolError, "Expected memory_from up to 1, got 2"),
]

TOO_MANY = dict.fromkeys(range(1000), 1.0)
THIN = pb.SetMemory(thin=pb.ThinMemory(states=4))


async def below_a_later_node(peer: Peer) -> None:
    await peer.send(draft=pb.Draft(base=7, prefix_hash=peer.hashes.short_at(7), tokens=[1], parents=[2]))


IN_AN_ANSWER: list[tuple[Send, type[errors.MoaError], str]] = [
    (frame(open=pb.Open()), errors.ProtocolError, "Expected one Open a stream"),
    (frame(ask=pb.Ask()), errors.ProtocolError, "Expected an Ask with an id"),
    (ask_with(base=50), errors.ProtocolError, "Expected an Ask with base 0 to 7, got base 50"),
    (ask_with(tokens=[VOCAB]), errors.TokenRangeError, "Token 2 is 97, outside the vocabulary"),
    (lambda peer: peer.ask([1] * (CONTEXT - 7), GREEDY), errors.ContextLengthError, "The conversation has 200 tokens"),
    (ask_with(sampling=pb.Sampling(temperature=-1)), errors.ConfigError, "temperature is -1.0"),
    (ask_with(sampling=pb.Sampling(logit_bias=TOO_MANY)), errors.ConfigError, "at most 300 are allowed"),
    (lambda peer: peer.draft([1, VOCAB]), errors.TokenRangeError, "Token 1 is 97, outside the vocabulary"),
    (below_a_later_node, errors.TreeError, "Node 0 of a draft tree has parent -2"),
    (lambda peer: peer.draft([1, 2], [-1]), errors.ProtocolError, "Expected one parent for each token of a draft"),
    (lambda peer: peer.draft([1], base=0), errors.ProtocolError, "Expected a Draft that names its base"),
    (frame(ack=pb.Ack(committed=90)), errors.ProtocolError, "Expected an Ack of at most 7 tokens, got 90"),
    (frame(set_memory=THIN), errors.ProtocolError, "every 1 or more tokens, got every 0"),
    (frame(set_codec=pb.SetCodec()), errors.ProtocolError, "Expected one of the codecs that Open offered"),
    (lambda peer: peer.send_bytes(b"\x0a\xff"), errors.ProtocolError, "got 2 bytes that do not parse"),
]


@pytest.mark.parametrize(
    ("is_answering", "send", "kind", "message"),
    [(False, *each) for each in FIRST_FRAMES] + [(True, *each) for each in IN_AN_ANSWER],
)
async def test_what_a_client_must_not_send(
    bystander: Peer,
    channel: grpc.aio.Channel,
    is_answering: bool,
    send: Send,
    kind: type[errors.MoaError],
    message: str,
) -> None:
    peer = Peer(channel)
    if is_answering:
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
    await send(peer)
    error, _ = await refused(peer)
    assert type(error) is kind
    assert message in str(error)


@pytest.mark.parametrize("length", [5000, 20_000])  # above our limit, and above gRPC's own
async def test_a_frame_that_is_too_long(target: Target, length: int) -> None:
    async with serving(make_host(target, frame_bytes=4096)) as running, channel_to(running) as channel:
        peer, beside = Peer(channel), Peer(channel)
        await peer.open()
        await beside.open()
        await peer.send(ask=pb.Ask(id=1, sampling=pb.Sampling(stop=["x" * length])))
        error, _ = await refused(peer)
        assert "Send less at once" in error.hint
        await beside.ask(PROMPT, GREEDY)
        await beside.verdict()


async def test_generate_of_bytes_that_are_no_request(channel: grpc.aio.Channel, target: Target) -> None:
    call = cast(Any, channel).unary_stream("/moa.v1.Moa/Generate")(b"\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert "Expected a GenerateRequest, got 2 bytes" in str(error_from_rpc(caught.value))
    assert await generate(channel, PROMPT, GREEDY) == plain_text(target, PROMPT, GREEDY)


async def test_a_refusal_waits_for_the_frame_that_is_being_written(channel: grpc.aio.Channel) -> None:
    """The question inside an Open is refused while Opened is on its way; the status must come all the same."""
    for _ in range(10):
        peer = Peer(channel)
        ask = pb.Ask(id=1, tokens=[1] * (CONTEXT + 1))
        await peer.send(open=pb.Open(protocol_version=PROTOCOL_VERSION, identity=IDENTITY, ask=ask))
        error, status = await refused(peer)
        assert isinstance(error, errors.ContextLengthError)
        assert status is grpc.StatusCode.OUT_OF_RANGE


async def test_frames_may_not_be_compressed(server: RunningServer, target: Target, channel: grpc.aio.Channel) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", compression=grpc.Compression.Gzip) as zipping:
        with pytest.raises(grpc.aio.AioRpcError):
            await Peer(zipping).open()
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # a stream's own error may be that of its write
            await generate(zipping, PROMPT, GREEDY)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "'gzip' is disabled" in str(caught.value.details())
    assert await generate(channel, PROMPT, GREEDY) == plain_text(target, PROMPT, GREEDY)


async def test_a_goodbye_that_overtakes_a_verdict_with_memory_ends_the_stream_in_order(target: Target) -> None:
    """The client reads nothing at first, so that all of the answer waits behind the first frame."""
    host, released = make_host(target), asyncio.Event()
    settings = AnswerSettings(max_tokens=6, ignore_end_of_text=True)
    ask = pb.Ask(id=1, tokens=[5, 17, 42], sampling=settings_to_proto(settings), prefix_hash=PrefixHashes().at(0))
    written = list[pb.ServerFrame]()

    async def frames() -> AsyncIterator[bytes]:
        opening = pb.Open(
            protocol_version=PROTOCOL_VERSION, identity=IDENTITY, codecs=[pb.CODEC_BF16], run_ahead=True, ask=ask
        )
        yield pb.ClientFrame(open=opening).SerializeToString()
        await until(
            lambda: any(live.account.finish is Finish.MAX_TOKENS for live in host.services.registry.live_sessions)
        )
        released.set()  # the writer's task runs once the goodbye was handled
        yield pb.ClientFrame(bye=pb.Bye()).SerializeToString()

    async def write(frame: pb.ServerFrame) -> None:
        written.append(frame)
        await released.wait()

    async with serving(host):
        await ConverseStream(host, write, Caller()).run(frames())
    assert [frame.WhichOneof("frame") for frame in written][:2] == ["opened", "verdict"]
    assert len(written[1].verdict.tokens) == settings.max_tokens
