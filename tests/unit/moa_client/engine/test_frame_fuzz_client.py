"""Mutated server frames against `ClientEngine`: each is refused by a name of the catalogue, or ignored by rule.

`MOA_FUZZ_FRAMES=100000 pytest tests/unit/moa_client/engine/test_frame_fuzz_client.py` is the long run.
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
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.conversation import Phase
from moa_client.conversation.events import Ended
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet
from moa_server.verifier import Target
from moa_shared.errors import InternalError, MoaError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_testing import World, simulate
from moa_testing.models import SimulatedExecutor

from tests.net.client_device import device
from tests.net.server_peer import VOCAB, tiny_target
from tests.unit.frame_mutations import FRAMES, FUZZ, FUZZ_SECONDS, Recipe, recipes, serialised
from tests.unit.moa_testing.stories import service_of

PROMPT = [5, 17, 33, 2, 64]
ANSWER_TOKENS = 6
WIDTH = 32  # of a memory row of the tiny drafter
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
        """Whether it has said all that it says."""
        return not self._plan

    def hear(self, frame: pb.ClientFrame) -> None:
        """Keeps the conversation as an honest server would."""
        if frame.HasField("open"):
            self.tokens = list(frame.open.tokens)
        ask = frame.open.ask if frame.HasField("open") else frame.ask
        self.tokens[ask.base or len(self.tokens) :] = ask.tokens
        self.ask_id = ask.id or self.ask_id

    def next_frame(self) -> bytes | None:
        """None: the stream ends."""
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
        left = len(PROMPT) + ANSWER_TOKENS - base
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
            payload=rng.randbytes(count * row_bytes(Codec.INT4, WIDTH)),
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
            async for event in engine.ask(PROMPT, AnswerSettings(max_tokens=ANSWER_TOKENS)):
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
    assert len(conversation.provenance) == len(conversation.tokens) <= len(PROMPT) + ANSWER_TOKENS
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
