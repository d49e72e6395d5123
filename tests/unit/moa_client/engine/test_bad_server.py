"""The client and a server that misbehaves: it names what is wrong, drops the stream, and keeps what was committed.

Mutated frames against `ClientEngine`: each is refused by a name of the catalogue, or ignored by rule.
`MOA_FUZZ_FRAMES=100000 pytest tests/unit/moa_client/engine/test_bad_server.py` is the long run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from hypothesis import given
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.conversation import Phase
from moa_client.conversation.events import Ended, Event, LinkChanged, LinkState, Provisional
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet
from moa_server.verifier import Target
from moa_shared.errors import InternalError, MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import AnswerSettings, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_testing import World, simulate
from moa_testing.models import SimulatedExecutor

from tests.net.client_device import device
from tests.net.server_peer import VOCAB, tiny_target
from tests.unit.frame_mutations import FRAMES, FUZZ, FUZZ_SECONDS, Recipe, recipes, serialised
from tests.unit.moa_testing.stories import service_of, simulated

PROMPT = [5, 17, 42]
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
        (memory(payload=b"short"), "bytes for 2 memory rows of 128 numbers in int4, got 5."),
        (memory(payload=b"\x80\x7f" + NUMBERS, count=1, start=1), "Expected memory of numbers up to 1.04858e+06"),
        (memory(payload=b"\x00\x50" + NUMBERS, count=1, start=1), "got larger ones"),
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


FUZZED_PROMPT = [5, 17, 33, 2, 64]
ANSWER_TOKENS = 6
FUZZED_WIDTH = 32  # of a memory row of the tiny drafter
KINDS = ("verdict", "verdict", "verdict", "memory", "memory", "beat", "go_away", "opened", "end")
NAMES = ("none", "lookup", "chain")
IMPATIENT = DraftingSettings(standalone=StandaloneRule(leave_ms=500.0))  # with a server that says nothing more
TALK_SECONDS = 20.0  # far beyond what a conversation of twenty frames takes, so that only a hang ends there


class FuzzedServer:
    """What a server says: the plan, one frame after the other, over all streams."""

    def __init__(self, plan: Sequence[Recipe], rng: random.Random) -> None:
        self._plan = list(plan)
        self.tokens: list[int] = []
        self.ask_id = 1
        self.sent = 0
        self.rng = rng

    @property
    def is_gone(self) -> bool:
        return not self._plan

    def hear(self, frame: pb.ClientFrame) -> None:
        """Keeps the conversation as an honest server would."""
        if frame.HasField("open"):
            self.tokens = list(frame.open.tokens)
        ask = frame.open.ask if frame.HasField("open") else frame.ask
        self.tokens[ask.base or len(self.tokens) :] = ask.tokens
        self.ask_id = ask.id or self.ask_id

    def next_frame(self) -> bytes | None:
        if not self._plan:
            return None
        kind, seed = self._plan.pop(0)
        if kind == "end":
            return None
        rng = random.Random(seed)
        frame = pb.ServerFrame(**{kind: getattr(self, f"_{kind}")(rng)})
        self.sent += 1
        return serialised(frame, rng)

    def opened(self) -> bytes:
        return pb.ServerFrame(opened=self._opened(self.rng)).SerializeToString()

    def _opened(self, rng: random.Random) -> pb.Opened:
        codec = rng.choice([pb.CODEC_INT4, pb.CODEC_UNSPECIFIED])
        return pb.Opened(resume_token=b"r" * 16, cached_tokens=rng.randrange(9), codec=codec)

    def _verdict(self, rng: random.Random) -> pb.Verdict:
        base = len(self.tokens)
        hashed = PrefixHashes(self.tokens).short_at(base)
        left = len(FUZZED_PROMPT) + ANSWER_TOKENS - base
        new = [rng.randrange(VOCAB - 1) for _ in range(min(left, rng.choice([1, 2, 3])))]
        self.tokens += new
        return pb.Verdict(
            ask=self.ask_id,
            base=base,
            prefix_hash=hashed,
            tokens=new,
            accepted=rng.randrange(len(new) + 1),
            finish=pb.FINISH_MAX_TOKENS if len(new) == left else pb.FINISH_UNSPECIFIED,
            step_hundredths=1000,
            memory=[self._memory(rng) for _ in range(rng.choice([0, 0, 0, 0, 1, 2]))],
        )

    def _memory(self, rng: random.Random) -> pb.Memory:
        held = len(self.tokens)
        start = rng.randrange(held + 1)
        count = rng.randrange(held - start + 1)
        return pb.Memory(
            start=start,
            count=count,
            codec=pb.CODEC_INT4,
            payload=rng.randbytes(count * row_bytes(Codec.INT4, FUZZED_WIDTH)),
            prefix_hash=PrefixHashes(self.tokens).short_at(start + count),
        )

    def _beat(self, rng: random.Random) -> pb.Beat:
        return pb.Beat(stamp=rng.choice([1, 2, rng.getrandbits(64)]), reply=True)

    def _go_away(self, rng: random.Random) -> pb.GoAway:
        return pb.GoAway(resume_token=b"r" * 16, reason="the server is shutting down")

    async def converse(self, frames: AsyncIterator[pb.ClientFrame], context: Any) -> None:
        """One stream: Opened, then the plan's frames, each as soon as the client has been heard."""
        if self.is_gone:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
        self.hear(await anext(frames))
        await context.write(self.opened())
        hearing = asyncio.create_task(self._listen(frames))
        try:
            while (data := self.next_frame()) is not None:
                await context.write(data)
                await asyncio.sleep(0.001)
        finally:
            hearing.cancel()

    async def _listen(self, frames: AsyncIterator[pb.ClientFrame]) -> None:
        async for frame in frames:
            self.hear(frame)


async def talk_through(world: World, target: Target, plan: Sequence[Recipe]) -> tuple[str, int]:
    """How one question ended, and how many frames came."""
    rng = random.Random(plan[0][1])
    server = FuzzedServer(plan, rng)
    world.link().service = service_of(converse=server.converse)
    fleet = Fleet([world.server(silence_seconds=0.05)])
    executor = SimulatedExecutor(lambda: 0.001)
    held = device(target, rng.choice(NAMES))
    engine = ClientEngine(fleet, held, VOCAB, Codec.INT4, IMPATIENT, executor=executor)
    end = "nothing"
    try:
        async with asyncio.timeout(TALK_SECONDS):
            async for event in engine.ask(FUZZED_PROMPT, AnswerSettings(max_tokens=ANSWER_TOKENS)):
                if isinstance(event, Ended):
                    end = f"ended {'standalone' if event.provisional else event.finish.name}"
    except MoaError as error:
        end = error.code
        if isinstance(error, InternalError) and "deserializing" not in error.message:
            raise
    finally:
        await engine.close()
    conversation = engine.conversation
    assert conversation.phase is Phase.IDLE or engine.answers.unsettled
    assert len(conversation.provenance) == len(conversation.tokens) <= len(FUZZED_PROMPT) + ANSWER_TOKENS
    assert all(0 <= token < VOCAB for token in conversation.tokens)
    length = len(conversation.tokens)
    assert conversation.hashes.at(length) == PrefixHashes(conversation.tokens).at(length)
    return end, server.sent


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a drafter that reads absurd memory
@pytest.mark.timeout(FUZZ_SECONDS)
def test_no_frame_breaks_the_client() -> None:
    """Each question ends: answered, written standalone, or refused in words."""
    ends: Counter[str] = Counter()
    sent, target = 0, tiny_target()

    @FUZZ
    @given(recipes(KINDS))
    def fuzz(plan: list[Recipe]) -> None:
        async def story(world: World) -> None:
            nonlocal sent
            end, frames = await talk_through(world, target, plan)
            ends[end] += 1
            sent += frames

        simulate(story)

    fuzz()
    print(f"{sent} frames: {dict(ends.most_common())}")
    assert sent >= FRAMES // 3
    assert ends["ended standalone"]
    assert ends["ended MAX_TOKENS"]
