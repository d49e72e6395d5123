"""Mutated client frames against `ConverseStream`: each is refused by a name of the catalogue, or ignored by rule.

`MOA_FUZZ_FRAMES=100000 pytest tests/unit/moa_server/service/test_frame_fuzz_server.py` is the long run.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import structlog
from hypothesis import given
from moa.v1 import moa_pb2 as pb
from moa_server.access.limits import Caller
from moa_server.service.converse import ConverseStream
from moa_server.service.generate import Generation
from moa_server.service.host import Host
from moa_shared.errors import InternalError, MoaError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.protobuf_messages import VerdictFrames, settings_to_proto
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import CONTEXT, IDENTITY, VOCAB, make_host, plain_text, tiny_target
from tests.unit.frame_mutations import FRAMES, FUZZ, FUZZ_SECONDS, Recipe, recipes, serialised

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=10, ignore_end_of_text=True)
KINDS = (  # those that a stream mostly has come first; a second Open or a Bye ends it
    *(3 * ("ask", "draft", "draft")),
    *(2 * ("ack", "credit", "set_codec", "set_memory", "beat", "stop")),
    *("open", "bye"),
)
STREAM_SECONDS = 120.0  # far beyond what a stream of twenty frames takes, so that only a hang ends there
PEERS = itertools.count()  # each on a connection of its own, with an allowance of its own


class FuzzedStream:
    """One stream into a server without a network, and what its client holds."""

    def __init__(self, host: Host, plan: Sequence[Recipe], tokens: Sequence[int] = ()) -> None:
        self._host = host
        self._plan = plan
        self.tokens = list(tokens)
        self.hashes = PrefixHashes(tokens)
        self.resume_token = b""
        self.sent = 0
        self._ask_id = 0
        self._verdicts = VerdictFrames()
        self._codecs: list[pb.Codec] = []

    async def run(self) -> str:
        """Code of the error that ended it; "ok" for none."""
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                await ConverseStream(self._host, self._take, Caller(peer=str(next(PEERS)))).run(self._frames())
        except MoaError as error:
            if isinstance(error, InternalError):
                raise
            return error.code
        return "ok"

    async def _frames(self) -> AsyncIterator[bytes]:
        for kind, seed in (("open", 4 * (self._plan[0][1] // 4)), *self._plan):
            rng = random.Random(seed)
            make = OTHERS[kind] if kind in OTHERS else getattr(self, f"_{kind}")
            frame = pb.ClientFrame(**{kind: make(rng)})
            self.sent += 1
            yield serialised(frame, rng) if self.sent > 1 else frame.SerializeToString()
            for _ in range(rng.choice([0, 1, 5])):
                await asyncio.sleep(0)
            if rng.random() < 0.05:
                await asyncio.sleep(0.002)  # a step of the target

    async def _take(self, frame: pb.ServerFrame) -> None:
        if frame.HasField("opened"):
            self.resume_token = frame.opened.resume_token
        if not frame.HasField("verdict"):
            return
        verdict = self._verdicts.read_verdict(frame.verdict)
        if verdict.tokens and verdict.ask == self._ask_id and verdict.base <= len(self.tokens):
            del self.tokens[verdict.base :]
            self.hashes.crop(verdict.base)
            self._append(verdict.tokens)

    def _append(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.hashes.extend(tokens)

    # ------------------------------------------------------------ valid frames

    def _open(self, rng: random.Random) -> pb.Open:
        self._codecs = rng.choice([[], [pb.CODEC_INT4], [pb.CODEC_BF16, pb.CODEC_INT8]])
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=IDENTITY,
            codecs=self._codecs,
            resume_token=self.resume_token,
            tokens=self.tokens,
            run_ahead=rng.random() < 0.7,
            reused_state=rng.random() < 0.5,
            credit_bytes=rng.choice([0, 1, 1 << 20]),
        )

    def _ask(self, rng: random.Random) -> pb.Ask:
        held = len(self.tokens)
        base = rng.choice([held, held, 0, rng.randrange(held + 1)])
        turn = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 3, 40]))]
        sampling = Sampling(rng.choice([0.0, 0.7]), rng.choice([0, 5]), rng.choice([1.0, 0.9]), rng.getrandbits(64))
        self._ask_id = 1 + self.sent
        message = pb.Ask(
            id=self._ask_id,
            base=base,
            prefix_hash=self.hashes.at(base),
            tokens=turn,
            sampling=settings_to_proto(AnswerSettings(sampling, rng.choice([0, 1, 10]), rng.choice([(), ("ab",)]))),
            provisional=self._draft(rng) if rng.random() < 0.2 else None,
        )
        del self.tokens[base:]
        self.hashes.crop(base)
        self._append(turn)
        return message

    def _draft(self, rng: random.Random) -> pb.Draft:
        held, nodes = len(self.tokens), rng.choice([0, 1, 4, 60])
        first = rng.choice([0, 0, 4])
        tokens = [rng.randrange(VOCAB) for _ in range(nodes)]
        parents = [rng.randrange(first + node + 1) for node in range(nodes)] if rng.random() < 0.5 else []
        if rng.random() < 0.3:
            return pb.Draft(tokens=tokens, parents=parents)  # continues the one before
        return pb.Draft(
            epoch=rng.choice([0, 0, 1, 2]),
            base=held,
            prefix_hash=self.hashes.short_at(held),
            first_node=first,
            tokens=tokens,
            parents=parents,
        )

    def _ack(self, _: random.Random) -> pb.Ack:
        return pb.Ack(committed=len(self.tokens))

    def _set_codec(self, rng: random.Random) -> pb.SetCodec:
        return pb.SetCodec(codec=rng.choice(self._codecs or [pb.CODEC_INT4]))

    def _set_memory(self, rng: random.Random) -> pb.SetMemory:
        thin = pb.ThinMemory(states=rng.choice([0, 4, 1 << 31]), every=rng.choice([1, 16, 1 << 31]))
        return rng.choice([pb.SetMemory(), pb.SetMemory(thin=thin)])

    def _stop(self, rng: random.Random) -> pb.Stop:
        return pb.Stop(base=rng.randrange(CONTEXT), ask=rng.choice([self._ask_id, 0]))


OTHERS: dict[str, Callable[[random.Random], Any]] = {
    "credit": lambda rng: pb.Credit(bytes=rng.choice([0, 1000, 1 << 20])),
    "beat": lambda rng: pb.Beat(stamp=rng.getrandbits(64), reply=rng.random() < 0.2),
    "bye": lambda _: pb.Bye(),
}


@pytest.mark.timeout(FUZZ_SECONDS)
def test_no_frame_breaks_the_server() -> None:
    """Each stream ends in words, holds nothing up, and leaves the server as it was."""
    ends: Counter[str] = Counter()
    sent = 0
    with asyncio.Runner() as runner:
        target = tiny_target()
        host = make_host(target, max_sessions=4)

        async def attack(plan: Sequence[Recipe]) -> None:
            nonlocal sent
            if not sent:
                host.services.engine.start()
            stream = FuzzedStream(host, plan)
            for _ in range(2 if plan[0][1] % 3 == 0 else 1):  # once more, where it broke
                ends[await stream.run()] += 1
                sent += stream.sent
                token = stream.resume_token
                stream = FuzzedStream(host, plan, stream.tokens)
                stream.resume_token = token
            assert len(host.services.registry) == host.services.registry.detached

        async def ask() -> list[int]:
            """An honest client's answer."""
            answer: list[int] = []

            async def take(message: pb.GenerateResponse) -> None:
                answer.extend(message.tokens)

            request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(GREEDY))
            await Generation(host, take, Caller(peer=str(next(PEERS)))).run(request)
            return answer

        expected, _ = plain_text(target, PROMPT, GREEDY)

        @FUZZ
        @given(recipes(KINDS))
        def fuzz(plan: list[Recipe]) -> None:
            with structlog.testing.capture_logs():
                runner.run(attack(plan))

        fuzz()
        assert runner.run(ask()) == expected
        runner.run(host.services.engine.stop())
    print(f"{sent} frames: {dict(ends.most_common())}")
    assert sent >= FRAMES
    assert {"ok", "protocol", "token_range", "tree", "config"} <= ends.keys()  # they get far enough to be judged
