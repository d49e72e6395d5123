"""What clients must not send: each is refused in words, ends that stream alone, and harms nobody else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_server.access.caller import Caller
from moa_server.running.running_server import RunningServer
from moa_server.service.admission import BURST_US, FRAME_US, REPLY_US
from moa_server.service.stream.converse import ConverseStream
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
    "bytes that are no frame": (
        lambda peer: peer.send_bytes(b"\xff\xff\xff"),
        snapshot("Expected a ClientFrame, got 3 bytes that do not parse. Use the same version of moa at both ends."),
    ),
    "an empty frame": (
        lambda peer: peer.send_bytes(b""),
        snapshot(
            "Expected a frame that this version knows, got an empty or unknown one. Use the same version of moa at both ends."
        ),
    ),
    "a frame of a later version": (
        lambda peer: peer.send_bytes(b"\xfa\x01\x00"),
        snapshot(
            "Expected a frame that this version knows, got an empty or unknown one. Use the same version of moa at both ends."
        ),
    ),
    "an ask": (
        lambda peer: peer.ask(PROMPT, GREEDY),
        snapshot("Expected Open as the first frame, got ask. Use the same version of moa at both ends."),
    ),
    "a draft": (
        lambda peer: peer.send(draft=pb.Draft(base=1, tokens=[1])),
        snapshot("Expected Open as the first frame, got draft. Use the same version of moa at both ends."),
    ),
    "a bye": (
        lambda peer: peer.send(bye=pb.Bye()),
        snapshot("Expected Open as the first frame, got bye. Use the same version of moa at both ends."),
    ),
}


@pytest.mark.parametrize(("send", "message"), BEFORE_OPEN.values(), ids=BEFORE_OPEN)
async def test_before_open(bystander: Peer, channel: grpc.aio.Channel, send: Send, message: str) -> None:
    peer = Peer(channel)
    await send(peer)
    error, status = await refused(peer)
    assert isinstance(error, ProtocolError)
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert str(error) == message


BAD_OPENS: dict[str, tuple[dict[str, Any], type[MoaError], str]] = {
    "another protocol": (
        {"protocol_version": 99},
        MismatchError,
        snapshot("The protocol version does not match: the server has 4, the client has 99. Update moa on the server."),
    ),
    "an older protocol": (
        {"protocol_version": 1},
        MismatchError,
        snapshot("The protocol version does not match: the server has 4, the client has 1. Update moa on the client."),
    ),
    "another target": (
        {"identity": pb.Identity(target_fingerprint=b"x" * 32)},
        MismatchError,
        snapshot(
            "The target model does not match: the server has tiny (747474747474), the client has tiny (787878787878). Start the client with the server's model and drafter, or connect to another server."
        ),
    ),
    "another target of a very long name": (
        {"identity": pb.Identity(target_id="n" * 60_000, target_fingerprint=b"x" * 32)},
        MismatchError,
        snapshot(
            "The target model does not match: the server has tiny (747474747474), the client has nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn (787878787878). Start the client with the server's model and drafter, or connect to another server."
        ),
    ),
    "another tokenizer": (
        {"identity": pb.Identity(tokenizer_hash=b"x" * 32)},
        MismatchError,
        snapshot(
            "The tokenizer does not match: the server has 6b6b6b6b6b6b, the client has 787878787878. Start the client with the server's model and drafter, or connect to another server."
        ),
    ),
    "another drafter": (
        {"identity": pb.Identity(drafter_fingerprint=b"x" * 32)},
        MismatchError,
        snapshot(
            "The drafter does not match: the server has 646464646464, the client has 787878787878. Give both ends the same --drafter, or start the client with --drafter none."
        ),
    ),
    "unknown codecs": (
        {"memory": False, "codecs": [0]},
        MismatchError,
        snapshot(
            "The memory codec does not match: the server has bf16, int8, int4, the client has none of these. Start the client with the server's model and drafter, or connect to another server."
        ),
    ),
    "a token out of range": (
        {"tokens": [1, VOCAB]},
        TokenRangeError,
        snapshot("Token 1 is 97, outside the vocabulary (0 to 96). Use the server's tokenizer."),
    ),
    "too many tokens": (
        {"tokens": [1] * (CONTEXT + 1)},
        ContextLengthError,
        snapshot(
            "The frame has 201 tokens, the context holds 200. Shorten the prompt, /reset the conversation, or raise the server's --context-length."
        ),
    ),
    "memory from beyond": (
        {"tokens": [1], "memory_from": 2},
        ProtocolError,
        snapshot("Expected memory_from up to 1, got 2. Use the same version of moa at both ends."),
    ),
}


@pytest.mark.parametrize(("fields", "kind", "message"), BAD_OPENS.values(), ids=BAD_OPENS)
async def test_open(
    bystander: Peer, channel: grpc.aio.Channel, fields: dict[str, Any], kind: type[MoaError], message: str
) -> None:
    peer = Peer(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.open(**fields)
    error = error_from_rpc(caught.value)
    assert type(error) is kind
    assert str(error) == message


def ask(**changes: Any) -> Send:
    async def send(peer: Peer) -> None:
        message = peer.ask_message([1, 2], GREEDY)
        message.MergeFrom(pb.Ask(**changes))
        await peer.send(ask=message)

    return send


async def ask_for_the_whole_context(peer: Peer) -> None:
    await peer.ask([1] * (CONTEXT - len(peer.tokens)), GREEDY)


IN_AN_ANSWER: dict[str, tuple[Send, type[MoaError], str]] = {
    "a second open": (
        lambda peer: peer.send(open=pb.Open()),
        ProtocolError,
        snapshot("Expected one Open a stream, got another Open. Use the same version of moa at both ends."),
    ),
    "an ask without an id": (
        lambda peer: peer.send(ask=pb.Ask()),
        ProtocolError,
        snapshot("Expected an Ask with an id of 1 or more, got none. Use the same version of moa at both ends."),
    ),
    "an ask beyond the end": (
        ask(base=50),
        ProtocolError,
        snapshot("Expected an Ask with base 0 to 6, got base 50. Use the same version of moa at both ends."),
    ),
    "an ask after other tokens": (
        ask(prefix_hash=1),
        ProtocolError,
        snapshot(
            "Expected an Ask that continues this conversation (6 tokens hash to d7c5f901a8316a5a), got 0000000000000001. The client must open a new stream with all its tokens."
        ),
    ),
    "an ask whose answer starts later": (
        ask(answer_start=90),
        ProtocolError,
        snapshot("Expected an Ask with answer_start 1 to 8, got 90. Use the same version of moa at both ends."),
    ),
    "an ask with a token out of range": (
        ask(tokens=[VOCAB]),
        TokenRangeError,
        snapshot("Token 2 is 97, outside the vocabulary (0 to 96). Use the server's tokenizer."),
    ),
    "an ask for the whole context": (
        ask_for_the_whole_context,
        ContextLengthError,
        snapshot(
            "The conversation has 200 tokens, the context holds 200 with at least one for the answer. Shorten the prompt, /reset the conversation, or raise the server's --context-length."
        ),
    ),
    "an ask with a temperature below 0": (
        ask(sampling=pb.Sampling(temperature=-1)),
        ConfigError,
        snapshot("temperature is -1.0, expected 0 (greedy) or 0.001 to 100. See --help for the values allowed."),
    ),
    "an ask with a penalty that is no number": (
        ask(sampling=pb.Sampling(presence_penalty=math.nan)),
        ConfigError,
        snapshot("presence_penalty is nan, expected -2 to 2. See --help for the values allowed."),
    ),
    "an ask with biases of too many tokens": (
        ask(sampling=pb.Sampling(logit_bias=dict.fromkeys(range(1000), 1.0))),
        ConfigError,
        snapshot("logit_bias names 1000 tokens, at most 300 are allowed. See --help for the values allowed."),
    ),
    "an ask with a bias outside its range": (
        ask(sampling=pb.Sampling(logit_bias={1: math.inf})),
        ConfigError,
        snapshot("logit_bias of token 1 is inf, expected -100 to 100. See --help for the values allowed."),
    ),
    "an ask with a bias outside the vocabulary": (
        ask(sampling=pb.Sampling(logit_bias={VOCAB: 1.0})),
        ConfigError,
        snapshot("logit_bias names token 97, outside the vocabulary (0 to 96). Use the server's tokenizer."),
    ),
    "a draft token out of range": (
        lambda peer: peer.draft([1, VOCAB]),
        TokenRangeError,
        snapshot("Token 1 is 97, outside the vocabulary (0 to 96). Use the server's tokenizer."),
    ),
    "a parent before the root": (
        lambda peer: peer.send(draft=pb.Draft(base=6, prefix_hash=peer.hashes.short_at(6), tokens=[1], parents=[2])),
        TreeError,
        snapshot(
            "Node 0 of a draft tree has parent -2, expected -1 to -1. Number the nodes so that each parent comes before its children."
        ),
    ),
    "fewer parents than tokens": (
        lambda peer: peer.draft([1, 2], [-1]),
        ProtocolError,
        snapshot(
            "Expected one parent for each token of a draft, or none, got 1 for 2. Use the same version of moa at both ends."
        ),
    ),
    "a draft that continues none": (
        lambda peer: peer.draft([1], base=0),
        ProtocolError,
        snapshot(
            "Expected a Draft that names its base, as the first one after an Open or an Ask, got base 0. Use the same version of moa at both ends."
        ),
    ),
    "an ack of tokens never committed": (
        lambda peer: peer.send(ack=pb.Ack(committed=90)),
        ProtocolError,
        snapshot("Expected an Ack of at most 6 tokens, got 90. Use the same version of moa at both ends."),
    ),
    "a memory row every 0 tokens": (
        lambda peer: peer.send(set_memory=pb.SetMemory(thin=pb.ThinMemory(states=4))),
        ProtocolError,
        snapshot(
            "Expected a memory row every 1 or more tokens, got every 0. Use the same version of moa at both ends."
        ),
    ),
    "a codec not offered": (
        lambda peer: peer.send(set_codec=pb.SetCodec()),
        ProtocolError,
        snapshot(
            "Expected one of the codecs that Open offered, got codec 0. Use the same version of moa at both ends."
        ),
    ),
    "bytes that are no frame": (
        lambda peer: peer.send_bytes(b"\x0a\xff"),
        ProtocolError,
        snapshot("Expected a ClientFrame, got 2 bytes that do not parse. Use the same version of moa at both ends."),
    ),
}


@pytest.mark.parametrize(("send", "kind", "message"), IN_AN_ANSWER.values(), ids=IN_AN_ANSWER)
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
    assert str(error) == message


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


async def test_a_stream_that_never_opens(target: Target) -> None:
    async with (
        serving(make_host(target, open_seconds=0.05)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        error, _ = await refused(Peer(channel))
        assert str(error) == snapshot(
            "Expected an Open within 0.05 s, got nothing. Use the same version of moa at both ends."
        )


@pytest.mark.parametrize(
    "draft",
    [
        {"epoch": 0, "base": 90},  # beyond what is committed
        {"prefix_hash": 1},  # another conversation
        {"first_node": 5, "parents": []},  # after nodes that never came
    ],
)
async def test_stale_drafts_are_counted_and_dropped(channel: grpc.aio.Channel, draft: dict[str, Any]) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.verdict()
    await peer.draft([1, 2, 3], **draft)
    await peer.draft([])
    verdict = await peer.verdict()
    assert (verdict.stale_nodes, verdict.drafted, len(verdict.tokens)) == (3, 0, 1)


async def test_generate_of_bytes_that_are_no_request(channel: grpc.aio.Channel, target: Target) -> None:
    call = cast(Any, channel).unary_stream("/moa.v1.Moa/Generate")(b"\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert str(error_from_rpc(caught.value)) == snapshot(
        "Expected a GenerateRequest, got 2 bytes that do not parse. Use the same version of moa at both ends."
    )
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


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"draft": pb.Draft(tokens=[1] * (CONTEXT + 1))}, TreeError),
        ({"ask": pb.Ask(tokens=[1] * (CONTEXT + 1))}, ContextLengthError),
    ],
)
async def test_a_frame_of_more_tokens_than_the_context(
    bystander: Peer, channel: grpc.aio.Channel, frame: dict[str, Any], kind: type[MoaError]
) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.send(**frame)
    error, _ = await refused(peer)
    assert type(error) is kind


async def test_a_request_of_more_tokens_than_the_context(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(channel, [1] * (CONTEXT + 1), GREEDY)
    assert isinstance(error_from_rpc(caught.value), ContextLengthError)


async def test_a_stream_that_has_used_its_allowance_is_not_read(target: Target) -> None:
    """Frames in the time of one moment: the burst is handled, the rest waits in gRPC's flow control."""
    host = make_host(target)
    host.services.clock = lambda: 0.0
    read = 0

    async def frames() -> AsyncIterator[bytes]:
        nonlocal read
        yield pb.ClientFrame(open=pb.Open(protocol_version=PROTOCOL_VERSION, identity=IDENTITY)).SerializeToString()
        while True:
            read += 1
            yield pb.ClientFrame(beat=pb.Beat(stamp=read)).SerializeToString()

    async def write(frame: pb.ServerFrame) -> None:
        pass

    stream = asyncio.create_task(ConverseStream(host.services, host.lifecycle, write, Caller()).run(frames()))
    for _ in range(10_000):
        await asyncio.sleep(0)
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    beats = BURST_US / (FRAME_US + REPLY_US)
    assert beats <= read + 2 < 2 * beats


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
            lambda: any(live.account.usage.finish is Finish.MAX_TOKENS for live in host.services.registry.live_sessions)
        )
        released.set()  # the writer's task runs once the goodbye was handled
        yield pb.ClientFrame(bye=pb.Bye()).SerializeToString()

    async def write(frame: pb.ServerFrame) -> None:
        written.append(frame)
        await released.wait()

    async with serving(host):
        await ConverseStream(host.services, host.lifecycle, write, Caller()).run(frames())
    assert [frame.WhichOneof("frame") for frame in written][:2] == ["opened", "verdict"]
    assert len(written[1].verdict.tokens) == settings.max_tokens
