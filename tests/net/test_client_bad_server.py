"""The client and a server that misbehaves: it names what is wrong, drops the stream, and keeps what was committed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.chat.signals import leaving_on_signals
from moa_client.conversation.conversation import Phase
from moa_client.conversation.events import Ended, Event, LinkChanged, LinkState, Provisional, Refused
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import ContextLengthError, MismatchError, MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_status
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.net.client_device import device
from tests.net.server_peer import VOCAB
from tests.support.answer_events import plainly_committed
from tests.support.messages import says

PROMPT = [5, 17, 42]
OPENED = pb.ServerFrame(opened=pb.Opened(resume_token=b"r", codec=pb.CODEC_INT4))
OPENED_BARE = pb.ServerFrame(opened=pb.Opened(resume_token=b"r"))
NUMBERS = bytes(6 + 64)  # of a row after its first scale: three other scales, then the numbers
WIDTH = 128  # of a memory row of the tiny drafter: two KV heads of 32, keys and values


def verdict(tokens: Sequence[int], base: int = 3, before: Sequence[int] = PROMPT, **fields: Any) -> pb.ServerFrame:
    hashed = PrefixHashes(before).short_at(len(before))
    return pb.ServerFrame(
        verdict=pb.Verdict(**{"ask": 1, "base": base, "prefix_hash": hashed, "tokens": tokens, **fields})
    )


def memory(start: int = 0, count: int = 2, **fields: Any) -> pb.ServerFrame:
    payload = bytes(2 * row_bytes(Codec.INT4, WIDTH))
    hashed = PrefixHashes(PROMPT).short_at(min(start + count, len(PROMPT)))
    values: dict[str, Any] = {"start": start, "count": count, "codec": pb.CODEC_INT4, "payload": payload}
    return pb.ServerFrame(memory=pb.Memory(**{**values, "prefix_hash": hashed, **fields}))


@asynccontextmanager
async def saying(
    frames: Sequence[pb.ServerFrame],
    version: int = PROTOCOL_VERSION,
    served: tuple[pb.Identity, list[pb.Drafter]] = (pb.Identity(), []),
    *,
    beats: bool = False,
    closes: bool = False,
) -> AsyncIterator[tuple[str, list[pb.ClientFrame]]]:
    """A server that opens every stream with the first frame and answers a question with the others.

    Args:
        beats: answer beats.
        closes: end every stream after its first frame.
    """
    heard: list[pb.ClientFrame] = []

    async def describe(request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        identity, drafters = served
        return pb.DescribeResponse(protocol_version=version, identity=identity, drafters=drafters)

    async def converse(requests: AsyncIterator[pb.ClientFrame], context: Any) -> None:
        async for frame in requests:
            heard.append(frame)
            kind = frame.WhichOneof("frame")
            asks = kind == "ask" or (kind == "open" and frame.open.HasField("ask"))
            if kind == "beat" and beats:
                await context.write(pb.ServerFrame(beat=pb.Beat(stamp=frame.beat.stamp, reply=True)))
            for reply in [*frames[: kind == "open"], *(frames[1:] if asks else ())]:
                await context.write(reply)
            if closes:
                return

    handlers = {
        "Describe": grpc.unary_unary_rpc_method_handler(
            describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
        ),
        "Converse": grpc.stream_stream_rpc_method_handler(
            converse, pb.ClientFrame.FromString, pb.ServerFrame.SerializeToString
        ),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("moa.v1.Moa", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", heard
    finally:
        await server.stop(0)


async def refusal(
    target: Target,
    frames: Sequence[pb.ServerFrame],
    *,
    name: str = "none",
    silence_seconds: float = 20.0,
    rule: StandaloneRule | None = None,
) -> tuple[MoaError, ClientEngine]:
    """The error with which a question ends on a device that cannot go on alone, and the talk after it."""
    async with saying(frames) as (address, _), connect([Server(address, 5.0, silence_seconds)]) as link:
        settings = DraftingSettings(standalone=rule or StandaloneRule())
        engine = ClientEngine(link, device(target, name), VOCAB, Codec.INT4, settings)
        try:
            with pytest.raises(MoaError) as caught:
                async for _event in engine.ask(PROMPT, AnswerSettings(max_tokens=4)):
                    pass
        finally:
            await engine.close()
    assert engine.conversation.phase is Phase.IDLE
    return caught.value, engine


async def alone(
    target: Target, frames: Sequence[pb.ServerFrame], name: str = "chain"
) -> tuple[list[Event], ClientEngine]:
    """What happens on a device that continues standalone."""
    async with saying(frames) as (address, _), connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device(target, name), VOCAB, Codec.INT4)
        events = [event async for event in engine.ask(PROMPT, AnswerSettings(max_tokens=4))]
        await engine.close()
    return events, engine


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (verdict([7], base=5), "Expected a verdict from position 3 or before, got one from 5."),
        (verdict([7], prefix_hash=1), "Expected a verdict after tokens that hash to"),
        (verdict([9], base=2, before=PROMPT[:2]), "repeats committed tokens unchanged"),
        (verdict([VOCAB]), f"Expected tokens 0 to {VOCAB - 1}, got {VOCAB}."),
        (verdict([7], finish=99), "Expected a verdict with a finish that this version knows, got 99."),
        (memory(start=2), "Expected memory of positions before 3, got 2 to 3."),
        (memory(start=2**32 - 1), "Expected memory of positions before 3"),
        (memory(payload=b"short"), "bytes for 2 memory rows of 128 numbers in int4, got 5."),
        (memory(payload=b"\x80\x7f" + NUMBERS, count=1, start=1), "Expected memory of numbers up to 1.04858e+06"),
        (memory(payload=b"\xc0\x7f" + NUMBERS, count=1, start=1), "or what is no number"),
        (memory(payload=b"\x00\x50" + NUMBERS, count=1, start=1), "got larger ones"),
        (memory(count=2**31), "Expected memory of positions before 3"),
        (memory(codec=pb.CODEC_BF16), "Expected memory in int4, got bf16."),
        (memory(codec=77), "Expected memory in a codec that this version knows, got codec 77."),
        (memory(plane=pb.PLANE_REUSED_STATE), "Expected no memory that was not asked for"),
        (memory(plane=9), "Expected memory of plane 0 or 1, got plane 9."),
    ],
)
async def test_impossible_frames_are_named_and_the_device_continues_standalone(
    target: Target, frame: pb.ServerFrame, words: str
) -> None:
    events, engine = await alone(target, [OPENED, frame])
    assert isinstance(events[0], LinkChanged)
    assert events[0].state is LinkState.OFFLINE
    assert words in events[0].reason
    assert not engine.connection.is_up
    assert not engine.connection.is_trying  # a server that says such things is not asked again
    assert isinstance(events[-1], Ended)
    assert events[-1].provisional
    written = [token for event in events if isinstance(event, Provisional) for token in event.tokens]
    assert len(written) == 4
    assert engine.conversation.tokens == PROMPT  # nothing of it is committed
    assert engine.answers.unsettled == 1


async def test_memory_of_other_tokens_is_passed_over(target: Target) -> None:
    hashed = PrefixHashes([1, 2]).at(2) & 0xFFFF_FFFF
    frames = [OPENED, memory(payload=b"short", prefix_hash=hashed), verdict([7, 8, 9, 1], finish=pb.FINISH_MAX_TOKENS)]
    events, engine = await alone(target, frames)
    assert events == [plainly_committed(7, 8, 9, 1), Ended(Finish.MAX_TOKENS)]
    assert engine.answers.unsettled == 0


async def test_without_a_drafter_the_question_is_taken_back(target: Target) -> None:
    error, engine = await refusal(target, [OPENED_BARE, verdict([7], base=5)])
    assert isinstance(error, ProtocolError)
    assert engine.conversation.tokens == []


async def test_memory_for_a_client_that_wants_none(target: Target) -> None:
    for opened, words in (
        (OPENED, "Expected no memory, got codec 3"),
        (OPENED_BARE, "no memory that was not asked for"),
    ):
        error, _ = await refusal(target, [opened, memory()])
        assert words in str(error)


async def test_what_came_before_the_fault_stays(target: Target) -> None:
    _, engine = await refusal(target, [OPENED_BARE, verdict([7, 8]), verdict([9], base=9)])
    assert engine.conversation.tokens == [*PROMPT, 7, 8]


async def test_without_progress_the_device_continues_standalone_though_beats_are_answered(target: Target) -> None:
    frames = [OPENED_BARE, verdict([7])]
    async with saying(frames, beats=True) as (address, heard), connect([Server(address, 5.0, 0.5)]) as link:
        engine = ClientEngine(link, device(target, "chain"), VOCAB, Codec.INT4)
        events = [event async for event in engine.ask(PROMPT, AnswerSettings(max_tokens=4))]
        reasons = [event.reason for event in events if isinstance(event, LinkChanged)]
        assert reasons == ["the server answers but makes no progress"]
        assert events[-1] == Ended(Finish.MAX_TOKENS, provisional=True)
        assert [frame.WhichOneof("frame") for frame in heard].count("open") == 1
        await engine.close()
        engine = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4)
        with says(UnavailableError, "The server has sent nothing for 0.5 s"):
            async for _ in engine.ask(PROMPT, AnswerSettings(max_tokens=4)):
                pass
        await engine.close()


async def test_another_first_frame_another_version_silence_and_a_server_that_leaves(target: Target) -> None:
    error, _ = await refusal(target, [verdict([7])])
    assert str(error) == snapshot(
        "Expected Opened as the first frame, got verdict. Use the same version of moa at both ends."
    )
    error, _ = await refusal(target, [OPENED_BARE], silence_seconds=0.2)
    assert isinstance(error, UnavailableError)
    assert str(error) == snapshot("The server has sent nothing for 0.2 s. Ask again, or try another server.")
    for last in (verdict([7], finish=pb.FINISH_DRAINING), verdict([7])):
        _, engine = await refusal(target, [OPENED_BARE, last], silence_seconds=0.2)
        assert engine.conversation.tokens == [*PROMPT, 7]
    async with saying([], version=99) as (address, _), connect([Server(address, 5.0, 5.0)]) as link:
        with says(
            MismatchError,
            "The protocol version does not match: the server has 99, the client has 4",
        ):
            await link.describe()


async def test_words_of_a_server_are_lines_on_which_no_terminal_acts(target: Target) -> None:
    """An escape sequence can set the clipboard, or hide what was said before."""
    evil = "\x1b]52;c;cm0gLXJmIH4=\x07\n\x9b2J"
    away = pb.ServerFrame(go_away=pb.GoAway(reason=evil))
    error, _ = await refusal(target, [OPENED_BARE, away], silence_seconds=0.2)
    assert str(error) == snapshot(
        "The server is going away: �]52;c;cm0gLXJmIH4=� �2J. Ask again, or try another server."
    )
    assert str(error).isprintable()
    served = pb.Identity(target_id=evil), [pb.Drafter(name=evil)]
    async with saying([], served=served) as (address, _), connect([Server(address, 5.0, 5.0)]) as link:
        described = await link.describe()
        assert described.identity.target_id.isprintable()
        assert described.drafters[0].name.isprintable()


async def test_a_signal_in_an_answer_says_goodbye_first(target: Target) -> None:
    async with saying([OPENED_BARE, verdict([7])]) as (address, heard), connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4)

        async def converse() -> None:
            async with leaving_on_signals(engine.connection.leave):
                async for _event in engine.ask(PROMPT, AnswerSettings()):
                    os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(SystemExit):
            await converse()
        await engine.close()
    assert [frame.WhichOneof("frame") for frame in heard].count("bye") == 1


SECOND = [9, 9]


@asynccontextmanager
async def refusing_the_first() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A server that is away at first, and then refuses any question but SECOND."""
    is_there = asyncio.Event()

    async def converse(requests: AsyncIterator[pb.ClientFrame], context: Any) -> None:
        if not is_there.is_set():
            await context.abort(*error_status(UnavailableError("Away.")))
        async for frame in requests:
            ask = frame.open.ask if frame.WhichOneof("frame") == "open" else frame.ask
            if frame.WhichOneof("frame") == "open":
                if frame.open.HasField("ask") and list(frame.open.tokens) != SECOND:
                    await context.abort(*error_status(ContextLengthError("Too long.")))
                await context.write(OPENED)
            if ask.HasField("sampling"):
                await context.write(verdict([7, 8], base=2, before=SECOND, ask=ask.id, finish=pb.FINISH_END_OF_TEXT))

    handler = grpc.stream_stream_rpc_method_handler(
        converse, pb.ClientFrame.FromString, pb.ServerFrame.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("moa.v1.Moa", {"Converse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", is_there
    finally:
        await server.stop(0)


async def test_a_refusal_between_questions_belongs_to_its_answer_is_reported_and_is_over(target: Target) -> None:
    async with refusing_the_first() as (address, is_there), connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device(target, "chain"), VOCAB, Codec.INT4)
        first = [event async for event in engine.ask(PROMPT, AnswerSettings(max_tokens=4))]
        assert isinstance(first[-1], Ended)
        assert first[-1].provisional
        is_there.set()
        told = [event async for event in engine.settle()]
        assert [event.error.code for event in told if isinstance(event, Refused)] == ["context_length"]
        assert engine.answers.unsettled == 0
        longer = AnswerSettings(max_tokens=150)  # the device does not end it alone before the stream is open
        second = [event async for event in engine.ask(SECOND, longer)]
        assert Ended(Finish.END_OF_TEXT) in second
        assert engine.conversation.tokens == [*SECOND, 7, 8]
        await engine.close()


async def test_a_server_that_opens_every_stream_and_ends_it_is_given_up_by_a_device_that_cannot_write(
    target: Target,
) -> None:
    began = time.monotonic()
    settings = DraftingSettings(standalone=StandaloneRule(leave_ms=1000.0))
    async with saying([OPENED_BARE], closes=True) as (address, heard), connect([Server(address, 5.0, 1.0)]) as link:
        engine = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4, settings)
        with says(UnavailableError, "The server ended the conversation"):
            async for _ in engine.ask(PROMPT, AnswerSettings(max_tokens=4)):
                pass
        await engine.close()
    assert time.monotonic() - began < 20.0
    assert 2 <= len(heard) < 15  # each attempt may wait longer than the one before
