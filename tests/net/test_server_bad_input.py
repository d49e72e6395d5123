"""What clients must not send: each is refused in words, ends that stream alone, and harms nobody else."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.access.limits import Caller
from moa_server.app import RunningServer
from moa_server.service.converse import ConverseStream
from moa_server.verifier import Target
from moa_shared.errors import (
    ConfigError,
    ContextLengthError,
    MismatchError,
    MoaError,
    ProtocolError,
    TokenRangeError,
    TreeError,
)
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_from_rpc
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.protobuf_messages import settings_to_proto

from tests.net.server_peer import CONTEXT, IDENTITY, VOCAB, Peer, generate, make_host, plain_text, serving, until

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)


@pytest.fixture
async def bystander(server: RunningServer, channel: grpc.aio.Channel, target: Target) -> AsyncIterator[Peer]:
    """Another client in the middle of an answer, which must come out right whatever happens beside it."""
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.verdict()
    yield peer
    while peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.draft([])
        await peer.verdict()
    assert peer.tokens[len(PROMPT) :] == plain_text(target, PROMPT, GREEDY)[0]
    assert len(server.host.services.registry) == 1  # the refused stream left nothing behind


async def refused(peer: Peer) -> tuple[MoaError, grpc.StatusCode]:
    """The error that the stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.done()
    return error_from_rpc(caught.value), caught.value.code()


Send = Callable[[Peer], Awaitable[None]]

BEFORE_OPEN: dict[str, tuple[Send, str]] = {
    "bytes that are no frame": (lambda peer: peer.send_bytes(b"\xff\xff\xff"), "got 3 bytes that do not parse"),
    "an empty frame": (lambda peer: peer.send_bytes(b""), "got an empty or unknown one"),
    "a frame of a later version": (lambda peer: peer.send_bytes(b"\xfa\x01\x00"), "got an empty or unknown one"),
    "an ask": (lambda peer: peer.ask(PROMPT, GREEDY), "Expected Open as the first frame, got ask"),
    "a bye": (lambda peer: peer.send(bye=pb.Bye()), "Expected Open as the first frame, got bye"),
}


@pytest.mark.parametrize(("send", "message"), BEFORE_OPEN.values(), ids=BEFORE_OPEN)
async def test_before_open(bystander: Peer, channel: grpc.aio.Channel, send: Send, message: str) -> None:
    peer = Peer(channel)
    await send(peer)
    error, status = await refused(peer)
    assert (type(error), status) == (ProtocolError, grpc.StatusCode.INVALID_ARGUMENT)
    assert message in str(error)


OTHER = b"x" * 32
BAD_OPENS: list[tuple[dict[str, Any], type[MoaError], str]] = [
    ({"protocol_version": 99}, MismatchError, "the client has 99. Update moa on the server."),
    ({"protocol_version": 1}, MismatchError, "the client has 1. Update moa on the client."),
    ({"identity": pb.Identity(target_fingerprint=OTHER)}, MismatchError, "The target model does not match"),
    ({"identity": pb.Identity(target_id="n" * 60_000, target_fingerprint=OTHER)}, MismatchError, f"{'n' * 80} ("),
    ({"identity": pb.Identity(tokenizer_hash=OTHER)}, MismatchError, "The tokenizer does not match"),
    ({"identity": pb.Identity(drafter_fingerprint=OTHER)}, MismatchError, "The drafter does not match"),
    ({"memory": False, "codecs": [0]}, MismatchError, "the client has none of these"),
    ({"tokens": [1, VOCAB]}, TokenRangeError, "Token 1 is 97, outside the vocabulary"),
    ({"tokens": [1] * (CONTEXT + 1)}, ContextLengthError, "The frame has 201 tokens"),
    ({"tokens": [1], "memory_from": 2}, ProtocolError, "Expected memory_from up to 1, got 2"),
]


@pytest.mark.parametrize(("fields", "kind", "message"), BAD_OPENS)
async def test_open(
    bystander: Peer, channel: grpc.aio.Channel, fields: dict[str, Any], kind: type[MoaError], message: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await Peer(channel).open(**fields)
    error = error_from_rpc(caught.value)
    assert type(error) is kind
    assert message in str(error)


def ask(**changes: Any) -> Send:
    async def send(peer: Peer) -> None:
        message = peer.ask_message([1, 2], GREEDY)
        message.MergeFrom(pb.Ask(**changes))
        await peer.send(ask=message)

    return send


def frame(**fields: Any) -> Send:
    return lambda peer: peer.send(**fields)


IN_AN_ANSWER: list[tuple[Send, type[MoaError], str]] = [
    (frame(open=pb.Open()), ProtocolError, "Expected one Open a stream"),
    (frame(ask=pb.Ask()), ProtocolError, "Expected an Ask with an id"),
    (ask(base=50), ProtocolError, "Expected an Ask with base 0 to 6, got base 50"),
    (ask(prefix_hash=1), ProtocolError, "Expected an Ask that continues this conversation"),
    (ask(answer_start=90), ProtocolError, "Expected an Ask with answer_start 1 to 8, got 90"),
    (ask(tokens=[VOCAB]), TokenRangeError, "Token 2 is 97, outside the vocabulary"),
    (lambda peer: peer.ask([1] * (CONTEXT - 6), GREEDY), ContextLengthError, "The conversation has 200 tokens"),
    (ask(sampling=pb.Sampling(temperature=-1)), ConfigError, "temperature is -1.0"),
    (ask(sampling=pb.Sampling(presence_penalty=math.nan)), ConfigError, "presence_penalty is nan"),
    (ask(sampling=pb.Sampling(logit_bias=dict.fromkeys(range(1000), 1.0))), ConfigError, "at most 300 are allowed"),
    (ask(sampling=pb.Sampling(logit_bias={VOCAB: 1.0})), ConfigError, "logit_bias names token 97"),
    (lambda peer: peer.draft([1, VOCAB]), TokenRangeError, "Token 1 is 97, outside the vocabulary"),
    (
        lambda peer: peer.send(draft=pb.Draft(base=6, prefix_hash=peer.hashes.short_at(6), tokens=[1], parents=[2])),
        TreeError,
        "Node 0 of a draft tree has parent -2",
    ),
    (lambda peer: peer.draft([1, 2], [-1]), ProtocolError, "Expected one parent for each token of a draft"),
    (lambda peer: peer.draft([1], base=0), ProtocolError, "Expected a Draft that names its base"),
    (frame(ack=pb.Ack(committed=90)), ProtocolError, "Expected an Ack of at most 6 tokens, got 90"),
    (
        frame(set_memory=pb.SetMemory(thin=pb.ThinMemory(states=4))),
        ProtocolError,
        "every 1 or more tokens, got every 0",
    ),
    (frame(set_codec=pb.SetCodec()), ProtocolError, "Expected one of the codecs that Open offered"),
    (lambda peer: peer.send_bytes(b"\x0a\xff"), ProtocolError, "got 2 bytes that do not parse"),
]


@pytest.mark.parametrize(("send", "kind", "message"), IN_AN_ANSWER)
async def test_in_an_answer(
    bystander: Peer, channel: grpc.aio.Channel, send: Send, kind: type[MoaError], message: str
) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.verdict()
    await send(peer)
    error, _ = await refused(peer)
    assert type(error) is kind
    assert message in str(error)


@pytest.mark.parametrize("length", [5000, 20_000])  # above our limit, and above gRPC's own
async def test_a_frame_that_is_too_long(target: Target, length: int) -> None:
    async with (
        serving(make_host(target, frame_bytes=4096)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
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
        assert isinstance(error, ContextLengthError)
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
