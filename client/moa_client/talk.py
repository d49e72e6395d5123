"""One conversation with a server: asks, drafts, and commits what the server decides.

State: the pure `Conversation`, the open stream, and the drafter on its thread. Invariant: the drafter is told of every
committed token once, in order, before it drafts below it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress

from moa.v1 import moa_pb2 as pb
from moa_shared.answer import AnswerSettings, Finish
from moa_shared.codec import Codec, decode
from moa_shared.coupling import Sampling
from moa_shared.errors import MoaError, ProtocolError, UnavailableError
from moa_shared.tree import DraftTree
from moa_shared.wire import PROTOCOL_VERSION, settings_to_proto

from moa_client.conversation import AskMessage, Conversation, DraftMessage, Phase
from moa_client.drafters import ClientDrafter
from moa_client.figures import Figures
from moa_client.inference import InferenceThread
from moa_client.link import Link, Stream
from moa_client.loading import Device

ACK_TOKENS = 16  # a quarter of how far a server runs ahead of a silent client
QUEUED_FRAMES = 256  # frames read ahead of the loop; a prompt of 8,000 tokens comes in about 60
GOODBYE_SECONDS = 1.0  # for the server to take a Bye in; a silent one is left
MEMORY_WAIT_SECONDS = 0.25  # for the newest memory row, which follows its verdict by the time of encoding it


class Talk:
    """A conversation over one link.

    Args:
        link: to the server.
        device: what this client holds.
        vocab_size: of the target.
        codec: how memory is to be coded.
    """

    def __init__(self, link: Link, device: Device, vocab_size: int, codec: Codec) -> None:
        self.conversation = Conversation(vocab_size)
        self.figures = Figures()
        self._link = link
        self._device = device
        self._codec = codec
        self._thread = InferenceThread()
        self._stream: Stream | None = None
        self._pump: asyncio.Task[None] | None = None
        self._frames: asyncio.Queue[pb.ServerFrame | MoaError] = asyncio.Queue(QUEUED_FRAMES)
        self._set_aside: deque[pb.ServerFrame | MoaError] = deque()  # came while the loop waited for memory
        self._resume_token = b""
        self._memory_stop = 0  # memory rows have come for positions up to here
        self._told = 0  # committed tokens that the drafter, or else the server, was told of
        self._renewed = False  # the conversation began anew: the server's session is of no more use
        self._stopping = False

    # ------------------------------------------------------------ the stream

    async def _open(self, before: Sequence[int]) -> Stream:
        """Opens the stream with everything that the conversation holds before the question.

        Raises:
            MoaError: the server's refusal, or that it does not answer.
        """
        drafter = self._device.drafter
        codecs = [self._codec.value] if drafter is not None and drafter.reads_memory else []
        self._stream, opened = await self._link.open(
            pb.Open(
                protocol_version=PROTOCOL_VERSION,
                identity=self._device.identity,
                codecs=codecs,  # type: ignore[arg-type]
                resume_token=self._resume_token,
                tokens=before,
                reused_state=self._device.state_width > 0,
                run_ahead=drafter is None,
            )
        )
        if opened.codec not in (pb.CODEC_UNSPECIFIED, *codecs):
            expected = f"memory in {self._codec.name.lower()}" if codecs else "no memory"
            raise ProtocolError(expected, f"codec {opened.codec}")
        self._resume_token = opened.resume_token
        self._frames = asyncio.Queue(QUEUED_FRAMES)
        self._set_aside.clear()
        self._memory_stop = 0
        self._pump = asyncio.create_task(self._read(self._stream, self._frames))
        self._told = len(before)
        if drafter is not None:
            await self._thread.run(lambda: drafter.restart(before))
        return self._stream

    @staticmethod
    async def _read(stream: Stream, frames: asyncio.Queue[pb.ServerFrame | MoaError]) -> None:
        """Moves frames to the queue until the stream ends; the reason is the last thing in it."""
        while True:
            try:
                await frames.put(await stream.receive())
            except MoaError as error:
                await frames.put(error)
                return

    async def _drop_stream(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()
        self._stream = self._pump = None

    async def _leave(self) -> None:
        """Ends the conversation at the server, which frees the session."""
        if self._stream is not None and self._pump is not None:
            await self._stream.say_goodbye()
            with suppress(TimeoutError, MoaError):  # the stream's end is such an error
                async with asyncio.timeout(GOODBYE_SECONDS):
                    while True:
                        await self._next_frame()
        await self._drop_stream()
        self._resume_token = b""

    async def close(self) -> None:
        """Ends the conversation at the server, and the inference thread."""
        await self._leave()
        self._thread.close()

    # ------------------------------------------------------------ an answer

    async def ask(self, turn: Sequence[int], settings: AnswerSettings) -> AsyncGenerator[list[int], None]:
        """Asks for an answer; yields newly committed tokens as they come.

        Raises:
            MoaError: why there is no (more) answer. What came of it stays in the conversation; a question that got
                none is taken back.
        """
        began = time.monotonic()
        traffic = self._link.traffic
        up, down = traffic.up_bytes, traffic.down_bytes
        figures = self.figures = Figures()
        self._stopping = False
        question = self.conversation.ask(turn, settings)
        try:
            await self._begin(question)
            async for tokens in self._rounds():
                figures.tokens += len(tokens)
                figures.seconds = time.monotonic() - began
                figures.first_token_seconds = figures.first_token_seconds or figures.seconds
                figures.up_bytes, figures.down_bytes = traffic.up_bytes - up, traffic.down_bytes - down
                yield tokens
            if figures.finish is Finish.DRAINING:
                raise UnavailableError("The server is shutting down and has cut the answer.", hint="Ask another one.")
        except BaseException:
            self.conversation.give_up()
            await self._drop_stream()
            raise

    async def _begin(self, question: AskMessage) -> None:
        """Brings the question to the server, on a stream that is open and knows this conversation."""
        if self._renewed:
            await self._leave()
            self._renewed = False
        if self._pump is not None and self._pump.done():
            await self._drop_stream()  # it ended since the last answer
        stream = self._stream or await self._open(self.conversation.tokens[: question.base])
        await stream.send(ask=_ask_frame(question))
        if self._stopping:
            await self.stop()

    async def stop(self) -> None:
        """Asks the server to end the running answer where it is; its last verdict then ends `ask`."""
        self._stopping = True
        if self.conversation.phase is Phase.ANSWERING and self._stream is not None:
            with suppress(MoaError):  # that the stream has ended, `ask` will say
                await self._stream.send(stop=pb.Stop(base=len(self.conversation.answer)))

    def reset(self) -> None:
        """Starts a new conversation; the server learns of it with the next question."""
        self.conversation.reset()
        self._renewed = True

    async def _rounds(self) -> AsyncIterator[list[int]]:
        """Verdict, draft, verdict, until the answer ends."""
        conversation = self.conversation
        while conversation.phase is Phase.ANSWERING:
            frame = await self._next_frame()
            kind = frame.WhichOneof("frame")
            if kind == "memory":
                await self._on_memory(frame.memory)
            elif kind == "go_away":
                raise UnavailableError(f"The server is going away: {frame.go_away.reason or 'it is shutting down'}.")
            elif kind == "verdict":
                tokens = self._on_verdict(frame.verdict)
                if tokens:
                    yield tokens
                if conversation.phase is Phase.ANSWERING and tokens:
                    await self._draft()

    def _on_verdict(self, verdict: pb.Verdict) -> list[int]:
        try:
            finish = Finish(verdict.finish)
        except ValueError:
            raise ProtocolError("a verdict with a finish that this version knows", f"{verdict.finish}") from None
        progress = self.conversation.on_verdict(verdict.base, verdict.prefix_hash, list(verdict.tokens), finish)
        self.figures.finish = progress.finish
        if progress.tokens:
            self.figures.verdicts += 1
            self.figures.accepted += progress.accepted
            self.figures.drafted += verdict.drafted
            self.figures.stale += verdict.stale_nodes
            self.figures.step_ms.append(verdict.step_ms)
        return list(progress.tokens)

    async def _draft(self) -> None:
        drafter = self._device.drafter
        if drafter is None:
            await self._acknowledge()
            return
        if drafter.reads_memory:
            await self._await_memory(len(self.conversation.tokens) - 1)
        new = self.conversation.tokens[self._told :]
        self._told = len(self.conversation.tokens)
        sampling = self.conversation.settings.sampling
        tree = await self._thread.run(lambda: _commit_and_draft(drafter, new, sampling))
        if self._stream is not None:
            await self._stream.send(draft=_draft_frame(self.conversation.propose(tree)))

    async def _acknowledge(self) -> None:
        """Without drafts, which say it too: lets the server run on."""
        committed = len(self.conversation.tokens)
        if committed - self._told >= ACK_TOKENS and self._stream is not None:
            self._told = committed
            await self._stream.send(ack=pb.Ack(committed=committed))

    async def _await_memory(self, stop: int) -> None:
        """Takes in memory until rows up to `stop` are there; drafting on older memory beats waiting for long."""
        deadline = time.monotonic() + MEMORY_WAIT_SECONDS
        while self._memory_stop < stop and (left := deadline - time.monotonic()) > 0:
            try:
                frame = await asyncio.wait_for(self._frames.get(), left)
            except TimeoutError:
                return
            if not isinstance(frame, MoaError) and frame.WhichOneof("frame") == "memory":
                await self._on_memory(frame.memory)
            else:
                self._set_aside.append(frame)
                return

    async def _on_memory(self, memory: pb.Memory) -> None:
        drafter, held = self._device.drafter, len(self.conversation.tokens)
        if memory.plane not in pb.Plane.values():
            raise ProtocolError("memory of plane 0 or 1", f"plane {memory.plane}")
        state = memory.plane == pb.PLANE_REUSED_STATE
        width = self._device.state_width if state else self._device.memory_width
        if drafter is None or not drafter.reads_memory or not width:
            raise ProtocolError("no memory that was not asked for", f"a Memory frame of plane {memory.plane}")
        if memory.codec != self._codec.value:
            raise ProtocolError(f"memory in {self._codec.name.lower()}", f"codec {memory.codec}")
        start, stop = memory.start, memory.start + memory.count
        if stop > held:
            raise ProtocolError(f"memory of positions before {held}", f"{start} to {stop - 1}")

        def run() -> None:
            drafter.remember(start, decode(memory.payload, self._codec, memory.count, width), state=state)

        await self._thread.run(run)
        if not state:
            self._memory_stop = max(self._memory_stop, stop)
        if self._stream is not None:
            await self._stream.send(credit=pb.Credit(bytes=len(memory.payload)))

    async def _next_frame(self) -> pb.ServerFrame:
        if self._set_aside:
            frame = self._set_aside.popleft()
        else:
            try:
                frame = await asyncio.wait_for(self._frames.get(), self._link.silence_seconds)
            except TimeoutError:
                raise UnavailableError(
                    f"The server has sent nothing for {self._link.silence_seconds:g} s.",
                    hint="Ask again, or try another server.",
                ) from None
        if isinstance(frame, MoaError):
            raise frame
        return frame


# ---------------------------------------------------------------- frames out


def _ask_frame(message: AskMessage) -> pb.Ask:
    return pb.Ask(
        base=message.base,
        prefix_hash=message.prefix_hash,
        tokens=message.tokens,
        sampling=settings_to_proto(message.settings),
        answer_start=message.answer_start,
    )


def _draft_frame(message: DraftMessage) -> pb.Draft:
    return pb.Draft(
        epoch=message.epoch,
        base=message.base,
        prefix_hash=message.prefix_hash,
        first_node=message.first_node,
        tokens=message.tokens,
        parents=message.parents,
        committed=message.committed,
    )


def _commit_and_draft(drafter: ClientDrafter, new: Sequence[int], sampling: Sampling) -> DraftTree:
    """On the inference thread."""
    drafter.commit(new)
    return drafter.draft(sampling)
