"""The client and a server that misbehaves: it names what is wrong, drops the stream, and keeps what was committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.conversation import Phase
from moa_client.conversation.events import Committed, Ended, Event, LinkChanged, LinkState, Provisional, Refused
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet
from moa_shared.errors import ContextLengthError, InternalError, MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_status
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_testing import World
from moa_testing.models import SimulatedExecutor

from tests.net.client_device import device
from tests.net.server_peer import VOCAB, tiny_target
from tests.support.messages import says
from tests.unit.moa_testing.stories import service_of, simulated

PROMPT, SECOND = [5, 17, 42], [9, 9]
FOUR = AnswerSettings(max_tokens=4)
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


def say(world: World, *frames: pb.ServerFrame, beats: bool = False, closes: bool = False) -> list[str]:
    """The server opens every stream with the first frame and answers a question with the others; what it hears.

    `beats`: it answers beats; `closes`: it ends every stream after its first frame.
    """
    heard: list[str] = []

    async def converse(requests: AsyncIterator[pb.ClientFrame], context: Any) -> None:
        async for frame in requests:
            kind = frame.WhichOneof("frame") or ""
            heard.append(kind)
            asks = kind == "ask" or (kind == "open" and frame.open.HasField("ask"))
            if kind == "beat" and beats:
                await context.write(pb.ServerFrame(beat=pb.Beat(stamp=frame.beat.stamp, reply=True)))
            for reply in [*frames[: kind == "open"], *(frames[1:] if asks else ())]:
                await context.write(reply)
            if closes:
                return

    world.link().service = service_of(converse)
    return heard


def engine_of(
    world: World, drafter: str = "none", silence_seconds: float = 20.0, rule: StandaloneRule | None = None
) -> ClientEngine:
    fleet, settings = Fleet([world.server(silence_seconds=silence_seconds)]), DraftingSettings()
    if rule is not None:
        settings = DraftingSettings(standalone=rule)
    held, executor = device(tiny_target(), drafter), SimulatedExecutor(lambda: 0.001)
    return ClientEngine(fleet, held, VOCAB, Codec.INT4, settings, executor=executor)


async def events_of(engine: ClientEngine, turn: Sequence[int] = PROMPT, settings: AnswerSettings = FOUR) -> list[Event]:
    return [event async for event in engine.ask(turn, settings)]


async def refusal(
    world: World, *frames: pb.ServerFrame, silence_seconds: float = 20.0
) -> tuple[MoaError, ClientEngine]:
    """The error with which a question ends on a device that cannot write, and its engine after it."""
    say(world, *frames, beats=True)
    engine = engine_of(world, silence_seconds=silence_seconds)
    with pytest.raises(MoaError) as caught:
        await events_of(engine)
    await engine.close()
    assert engine.conversation.phase is Phase.IDLE
    return caught.value, engine


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
@simulated
async def test_impossible_frames_are_named_and_the_device_continues_standalone(
    world: World, frame: pb.ServerFrame, words: str
) -> None:
    say(world, OPENED, frame)
    engine = engine_of(world, "chain")
    events = await events_of(engine)
    assert isinstance(events[0], LinkChanged)
    assert events[0].state is LinkState.OFFLINE
    assert words in events[0].reason
    assert not engine.connection.is_up
    assert not engine.connection.is_trying  # a server that says such things is not asked again
    assert events[-1] == Ended(Finish.MAX_TOKENS, provisional=True)
    assert sum(len(event.tokens) for event in events if isinstance(event, Provisional)) == 4
    assert (engine.conversation.tokens, engine.answers.unsettled) == (PROMPT, 1)  # nothing of it is committed
    await engine.close()


@simulated
async def test_memory_of_other_tokens_is_passed_over(world: World) -> None:
    other = memory(payload=b"short", prefix_hash=PrefixHashes([1, 2]).short_at(2))
    say(world, OPENED, other, verdict([7, 8, 9, 1], finish=pb.FINISH_MAX_TOKENS))
    engine = engine_of(world, "chain")
    events = await events_of(engine)
    assert [event.tokens for event in events if isinstance(event, Committed)] == [(7, 8, 9, 1)]
    assert (events[-1], engine.answers.unsettled) == (Ended(Finish.MAX_TOKENS), 0)


@pytest.mark.parametrize(
    ("frames", "words", "kept"),
    [
        ([OPENED_BARE, verdict([7], base=5)], "Expected a verdict from position 3", []),
        ([OPENED, memory()], "Expected no memory, got codec 3", []),
        ([OPENED_BARE, memory()], "no memory that was not asked for", []),
        ([OPENED_BARE, verdict([7, 8]), verdict([9], base=9)], "Expected a verdict from", [*PROMPT, 7, 8]),
        ([verdict([7])], "Expected Opened as the first frame, got verdict", []),
        ([OPENED_BARE], "The server has sent nothing for 0.2 s. Ask again, or try another server.", []),
        ([OPENED_BARE, verdict([7], finish=pb.FINISH_DRAINING)], "has sent nothing for 0.2 s", [*PROMPT, 7]),
        ([OPENED_BARE, verdict([7])], "The server has sent nothing for 0.2 s", [*PROMPT, 7]),
    ],
)
@simulated
async def test_without_a_drafter_the_answer_ends_there_and_what_came_before_stays(
    world: World, frames: list[pb.ServerFrame], words: str, kept: list[int]
) -> None:
    error, engine = await refusal(world, *frames, silence_seconds=0.2)
    assert words in str(error)
    assert isinstance(error, ProtocolError | UnavailableError)
    assert engine.conversation.tokens == kept


@simulated
async def test_words_of_a_server_are_lines_on_which_no_terminal_acts(world: World) -> None:
    """An escape sequence can set the clipboard, or hide what was said before."""
    evil = "\x1b]52;c;cm0gLXJmIH4=\x07\n\x9b2J"
    error, _ = await refusal(world, OPENED_BARE, pb.ServerFrame(go_away=pb.GoAway(reason=evil)), silence_seconds=0.2)
    assert str(error) == snapshot(
        "The server is going away: �]52;c;cm0gLXJmIH4=� �2J. Ask again, or try another server."
    )
    assert str(error).isprintable()
    described = pb.DescribeResponse(
        protocol_version=PROTOCOL_VERSION, identity=pb.Identity(target_id=evil), drafters=[pb.Drafter(name=evil)]
    )
    world.link().service = service_of(lambda *_: None, described)  # type: ignore[arg-type]
    served = await world.server().describe()
    assert served.identity.target_id.isprintable()
    assert served.drafters[0].name.isprintable()


@simulated
async def test_a_refusal_between_questions_belongs_to_its_answer_is_reported_and_is_over(world: World) -> None:
    """The server is away at first, and then refuses any question but the second."""
    is_there = False

    async def converse(requests: AsyncIterator[pb.ClientFrame], context: Any) -> None:
        if not is_there:
            await context.abort(*error_status(UnavailableError("Away.")))
        async for frame in requests:
            ask = frame.open.ask if frame.WhichOneof("frame") == "open" else frame.ask
            if frame.WhichOneof("frame") == "open":
                if frame.open.HasField("ask") and list(frame.open.tokens) != SECOND:
                    await context.abort(*error_status(ContextLengthError("Too long.")))
                await context.write(OPENED)
            if ask.HasField("sampling"):
                await context.write(verdict([7, 8], base=2, before=SECOND, ask=ask.id, finish=pb.FINISH_END_OF_TEXT))

    world.link().service = service_of(converse)
    engine = engine_of(world, "chain")
    first = await events_of(engine)
    assert first[-1] == Ended(Finish.MAX_TOKENS, provisional=True)
    is_there = True
    told = [event async for event in engine.attend(lambda: not engine.answers.unsettled)]
    assert [event.error.code for event in told if isinstance(event, Refused)] == ["context_length"]
    assert engine.answers.unsettled == 0
    longer = AnswerSettings(max_tokens=150)  # the device does not end it standalone before the stream is open
    assert Ended(Finish.END_OF_TEXT) in await events_of(engine, SECOND, longer)
    assert engine.conversation.tokens == [*SECOND, 7, 8]
    await engine.close()


@simulated
async def test_a_server_that_opens_every_stream_and_ends_it_is_given_up_by_a_device_that_cannot_write(
    world: World,
) -> None:
    heard = say(world, OPENED_BARE, closes=True)
    engine = engine_of(world, silence_seconds=1.0, rule=StandaloneRule(leave_ms=1000.0))
    with says(UnavailableError, "The server ended the conversation"):
        await events_of(engine)
    await engine.close()
    assert 2 <= len(heard) < 15  # each attempt may wait longer than the one before


@simulated
async def test_a_drafter_that_fails_ends_the_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, tokens: Sequence[int]) -> None:
        raise RuntimeError("no such row")

    monkeypatch.setattr(MoaDrafter, "restart", fail)
    say(world, OPENED)
    engine = engine_of(world, "chain")
    with pytest.raises(InternalError, match="The drafter has failed"):
        await events_of(engine)
    await engine.close()
