"""A tiny random target behind a real server on loopback, and the bare peer that talks to it frame by frame."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc.aio
import numpy as np
import numpy.typing as npt
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.access.keys import Gate
from moa_server.app import RunningServer, start
from moa_server.drafting.draft_decision import MemorySource
from moa_server.drafting.forward_cost import RowShares
from moa_server.engine.live_session import Observer
from moa_server.engine.stepper import Stepper
from moa_server.service.host import Host
from moa_server.service.services import Served
from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.constraints.compiler import ConstraintCompiler
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.memory_codec import decode as decode_rows
from moa_shared.protocol.messages import AnswerSettings, Finish, FinishRule
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.protobuf_messages import VerdictFrames, rows_from_proto, settings_to_proto
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Sampling

from tests.support.tiny_models import SIZES, tiny_kernel_target, tiny_model

VOCAB, LAYERS = SIZES["vocab_size"], SIZES["num_hidden_layers"]
ROW_WIDTH = 64  # of the toy memory encoder
STATE_LAYER = 2  # the toy drafter reuses one layer
END_OF_TEXT = 96
CONTEXT = 200
MODEL = tiny_model(max_position_embeddings=CONTEXT)
IDENTITY = pb.Identity(
    target_id="tiny",
    target_fingerprint=b"t" * 32,
    tokenizer_hash=b"k" * 32,
    drafter_fingerprint=b"d" * 32,
    execution=b"e" * 32,
)
DRAFTER = pb.Drafter(name="toy", fingerprint=IDENTITY.drafter_fingerprint, reused_layers=LAYERS - STATE_LAYER)
END: Any = cast(Any, grpc.aio).EOF  # of a stream; the stubs do not know it
PROMPT = [5, 17, 42, 8, 17, 42]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
SAMPLED = AnswerSettings(Sampling(temperature=0.9, top_p=0.95, seed=11), max_tokens=24, ignore_end_of_text=True)
PATIENCE = 100.0  # seconds that a test waits for a frame: only a hang ends there


def tiny_target() -> KernelTarget:
    return tiny_kernel_target(MODEL, plain=True)


def toy_source(target: Target) -> MemorySource:
    """Memory rows that depend on every number of a token's keys and values."""
    width = math.prod(target.new_cache().lsa_input(0, 0).shape[1:])
    weight = (np.random.default_rng(5).standard_normal((width, ROW_WIDTH)) / width**0.5).astype(np.float32)

    def encode(kv: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        rows: npt.NDArray[np.float32] = kv.reshape(len(kv), width) @ weight
        return rows

    return MemorySource(encode, ROW_WIDTH, STATE_LAYER, fingerprint=IDENTITY.drafter_fingerprint)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(97 + token % 26) for token in tokens)


def make_host(
    target: Target,
    *,
    stepper: Stepper | None = None,
    drafters: Sequence[pb.Drafter] = (DRAFTER,),
    gate: Gate | None = None,
    observer: Observer | None = None,
    clock: Callable[[], float] = time.monotonic,
    forms: ConstraintCompiler | None = None,
    **settings: Any,
) -> Host:
    identity = pb.Identity()
    identity.CopyFrom(IDENTITY)
    served = Served(
        identity=identity, execution=pb.Execution(level="float32", details="kernels"), vocab_size=VOCAB,
        context_tokens=CONTEXT, end_of_text=frozenset({END_OF_TEXT}), decode=decode, drafters=tuple(drafters),
        row_shares=RowShares.straight(0.01), constraints=forms,
    )  # fmt: skip
    # What is verified must not depend on how fast this machine is now. All clients of a test have one address.
    fixed = {"port": 0, "peer_requests_per_minute": 0, "allow_ignore_end_of_text": True, "choose_nodes": False}
    return Host.assemble(
        served,
        stepper or Stepper(target, [toy_source(target)]),
        ServerSettings(**{**fixed, **settings}),
        gate=gate,
        observer=observer,
        clock=clock,
    )


@asynccontextmanager
async def serving(host: Host, grace_seconds: float = 0.0) -> AsyncIterator[RunningServer]:
    running = await start(host)
    try:
        yield running
    finally:
        await running.stop(grace_seconds)


def channel_to(running: RunningServer, *options: tuple[str, Any]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options)


OWN = ("grpc.use_local_subchannel_pool", 1)  # a channel's: it has a connection, and a port, of its own


def plain_text(target: Target, prompt: Sequence[int], settings: AnswerSettings) -> tuple[list[int], Finish]:
    """The answer of the target alone, one forward a token."""
    rule = FinishRule(settings, len(prompt), CONTEXT, frozenset({END_OF_TEXT}), decode)
    cache = target.new_cache()
    answer: list[int] = []
    feed = list(prompt)
    while True:
        logits = target.forward(cache, feed, None, slice(len(feed) - 1, None)).logits
        feed, finish = rule.cut(answer, select(logits, [len(prompt) + len(answer)], settings.sampling))
        answer += feed
        if finish is not Finish.UNFINISHED:
            return answer, finish


class Peer:
    """A client that says exactly what a test wants it to say, and holds what the server answered."""

    def __init__(self, channel: grpc.aio.Channel, **channel_call: Any) -> None:
        self.call: Any = cast(Any, channel).stream_stream("/moa.v1.Moa/Converse")(**channel_call)
        self.tokens: list[int] = []
        self.hashes = PrefixHashes()
        self.epoch = 0
        self.asks = self.answer_start = 0
        self.traceparent = ""
        self.verdicts: list[pb.Verdict] = []
        self._reader = VerdictFrames()
        self.memory: list[pb.Memory] = []
        self.opened: pb.Opened | None = None
        self.go_away: pb.GoAway | None = None

    # ------------------------------------------------------------ sending

    async def send(self, **frame: Any) -> None:
        await self.call.write(pb.ClientFrame(**frame).SerializeToString())

    async def send_bytes(self, data: bytes) -> None:
        await self.call.write(data)

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.hashes.extend(tokens)

    async def open(self, *, tokens: Sequence[int] = (), memory: bool = True, **fields: Any) -> pb.Opened:
        """Opens and waits for the answer."""
        self.append(tokens)
        message = pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=IDENTITY,
            codecs=[pb.CODEC_BF16, pb.CODEC_INT8, pb.CODEC_INT4] if memory else [],
            tokens=tokens,
        )
        message.MergeFrom(pb.Open(**fields))
        await self.send(open=message)
        while self.opened is None:
            await self.receive()
        return self.opened

    def ask_message(self, tokens: Sequence[int], settings: AnswerSettings, answer_start: int = 0) -> pb.Ask:
        base = len(self.tokens)
        self.append(tokens)
        self.asks += 1
        self.answer_start = answer_start or len(self.tokens)
        return pb.Ask(
            id=self.asks, base=base, prefix_hash=self.hashes.at(base), tokens=tokens,
            sampling=settings_to_proto(settings), answer_start=self.answer_start, traceparent=self.traceparent,
        )  # fmt: skip

    async def resume(
        self, tokens: Sequence[int], settings: AnswerSettings, answer_start: int, provisional: Any = None, **fields: Any
    ) -> pb.Opened:
        """Opens for an answer of whose text it holds `tokens`, the question included, and nothing more."""
        self.append(tokens)
        ask = self.ask_message([], settings, answer_start)
        if provisional is not None:
            draft = pb.Draft(epoch=1, base=len(tokens), tokens=provisional)
            draft.prefix_hash = self.hashes.short_at(len(tokens))
            ask.provisional.CopyFrom(draft)
        self.tokens, self.hashes = [], PrefixHashes()
        return await self.open(tokens=tokens, ask=ask, **fields)

    async def ask(self, tokens: Sequence[int], settings: AnswerSettings, answer_start: int = 0) -> None:
        await self.send(ask=self.ask_message(tokens, settings, answer_start))

    async def draft(self, tokens: Sequence[int], parents: Sequence[int] = (), **changes: Any) -> None:
        """Sends a draft below the newest committed token."""
        fields = {
            "epoch": self.epoch,
            "base": len(self.tokens),
            "prefix_hash": self.hashes.short_at(len(self.tokens)),
            "tokens": tokens,
            "parents": [node - parent if parent >= 0 else 0 for node, parent in enumerate(parents)],
        }
        await self.send(draft=pb.Draft(**{**fields, **changes}))

    async def bye(self) -> None:
        """Ends the stream as a client should, and waits for its end."""
        await self.send(bye=pb.Bye())
        await self.done()

    async def done(self) -> None:
        while await self.receive() is not None:
            pass

    # ------------------------------------------------------------ receiving

    async def receive(self) -> pb.ServerFrame | None:
        """The next frame, taken in; None at the end of the stream. Raises what the server refused with."""
        async with asyncio.timeout(PATIENCE):
            data = await self.call.read()
        if data is END:
            return None
        frame = pb.ServerFrame.FromString(data)
        kind = frame.WhichOneof("frame")
        if kind == "opened":
            self.opened = frame.opened
        elif kind == "memory":
            self._take_memory(frame.memory)
        elif kind == "go_away":
            self.go_away = frame.go_away
            await self.call.done_writing()  # it is the client that ends the stream
        elif kind == "verdict":
            self._take(frame.verdict)
            for memory in frame.verdict.memory:
                self._take_memory(memory)
        return frame

    def _take_memory(self, memory: pb.Memory) -> None:
        assert memory.prefix_hash == self.hashes.short_at(memory.start + memory.count)
        self.memory.append(memory)

    def _take(self, verdict: pb.Verdict) -> None:
        """Takes a verdict in, with what it leaves out filled in."""
        whole = self._reader.read_verdict(verdict)
        for memory in verdict.memory:
            rows = rows_from_proto(memory, whole)
            memory.start, memory.count = rows.start, rows.count
        verdict.ask, verdict.base = whole.ask, whole.base
        assert verdict.base <= len(self.tokens)
        assert not verdict.prefix_hash or verdict.prefix_hash == self.hashes.short_at(verdict.base)
        known = len(self.tokens) - verdict.base
        assert self.tokens[verdict.base :] == list(verdict.tokens[:known])
        self.append(verdict.tokens[known:])
        self.verdicts.append(verdict)

    async def verdict(self) -> pb.Verdict:
        """The next verdict; memory that comes before it is taken in."""
        seen = len(self.verdicts)
        while len(self.verdicts) == seen:
            assert await self.receive() is not None, "the stream ended before the verdict"
        return self.verdicts[-1]

    async def finish(self, *, in_rounds: bool = False) -> list[int]:
        """Reads the answer to its end: its text; `in_rounds`: with the drafts, here empty, that the server waits for."""
        while not (self.verdicts and self.verdicts[-1].ask == self.asks and self.verdicts[-1].finish):
            if in_rounds and self.verdicts and self.verdicts[-1].ask == self.asks:
                await self.draft([])
            await self.verdict()
        return self.tokens[self.answer_start :]

    async def answer(self, tokens: Sequence[int], settings: AnswerSettings, *, in_rounds: bool = False) -> list[int]:
        """Asks, and reads the whole answer."""
        await self.ask(tokens, settings)
        return await self.finish(in_rounds=in_rounds)

    async def rows(self, stop: int, plane: int = pb.PLANE_MEMORY, *, start: int = 0) -> dict[int, pb.Memory]:
        """Waits until every position from `start` to `stop` has its row; which frame held each that came."""
        while True:
            held = {
                position: frame
                for frame in self.memory
                if frame.plane == plane
                for position in range(frame.start, frame.start + frame.count)
            }
            if all(position in held for position in range(start, stop)):
                return held
            assert await self.receive() is not None, "the stream ended before the memory"


def row_of(frame: pb.Memory, position: int, width: int = ROW_WIDTH) -> npt.NDArray[np.float32]:
    """The row of a position, of `width` numbers."""
    rows: npt.NDArray[np.float32] = decode_rows(frame.payload, Codec(frame.codec), frame.count, width)
    row: npt.NDArray[np.float32] = rows[position - frame.start]
    return row


async def generate(
    channel: grpc.aio.Channel, prompt: Sequence[int], settings: AnswerSettings, **call: Any
) -> tuple[list[int], Finish]:
    """A Generate call."""
    stub = moa_pb2_grpc.MoaStub(channel)
    tokens: list[int] = []
    finish = Finish.UNFINISHED
    request = pb.GenerateRequest(tokens=prompt, sampling=settings_to_proto(settings))
    async for response in stub.Generate(request, **call):
        tokens += response.tokens
        finish = Finish(response.finish)
    return tokens, finish


async def until(holds: Callable[[], bool]) -> None:
    """Lets the server's own tasks run until something holds that no frame tells."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 (the server has no event for tests to wait on)
            await asyncio.sleep(0.001)


def trailer(error: grpc.aio.AioRpcError, key: str) -> str | bytes:
    """What the server refused with, beside the status."""
    trailers: Any = error.trailing_metadata()
    value: str | bytes = dict(trailers or ())[key]
    return value
