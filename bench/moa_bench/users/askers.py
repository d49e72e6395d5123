"""Ways of one user to an answer: plain streaming, and an oracle that drafts as the client program does.

Each has a connection of its own, as devices have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.drafting.settings import DraftingSettings
from moa_client.link.frames import Beat, FrameReader, GoAway, make_open
from moa_client.link.stream import EOF
from moa_client.memory.plan import CREDIT_EVERY_BYTES
from moa_shared.errors import UnavailableError
from moa_shared.protocol.continued_frames import DraftWriter
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Draft, Memory
from moa_shared.protocol.protobuf_messages import ask_to_proto, settings_to_proto

from moa_bench.harness.oracle import Script
from moa_bench.simulation.device import ScriptedDevice
from moa_bench.users.figures import UserAnswer
from moa_bench.users.pending_byes import PendingByes

ENDED = "The server ended a conversation before its answer was whole."
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class PlainAsker:
    """Calls `Generate`.

    Args:
        address: "host:port".
        settings: of each answer.
        server_drafts: whether the server may draft.
    """

    def __init__(self, address: str, settings: AnswerSettings, *, server_drafts: bool = False) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        self._stub: Any = moa_pb2_grpc.MoaStub(self._channel)
        self._settings = settings
        self._server_drafts = server_drafts

    async def close(self) -> None:
        await self._channel.close(None)

    async def ask(self, prompt: Sequence[int], answer: UserAnswer) -> None:
        request = pb.GenerateRequest(
            tokens=prompt, sampling=settings_to_proto(self._settings), server_drafts=self._server_drafts
        )
        try:
            async for response in self._stub.Generate(request):
                answer.on_tokens(time.perf_counter(), response.tokens)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


class OracleAsker:
    """Holds a `Converse` stream for each answer, and drafts from a script.

    The device is the client program's, as far as the server can see: its drafting rules, credits and
    acknowledgements; it takes in memory rows without reading them. Only the drafter is replaced, and a draft step is a
    wait, because each user has a device of its own.

    Args:
        address: "host:port".
        described: what the server says of itself.
        settings: of each answer.
        scripts: of each question, by number.
        draft_ms: of a draft step.
        drafting: "device", or "auto": the server while it has time, otherwise the device.
    """

    def __init__(
        self,
        address: str,
        described: pb.DescribeResponse,
        settings: AnswerSettings,
        scripts: Sequence[Script],
        draft_ms: float,
        drafting: Literal["device", "auto"] = "device",
    ) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        self._stub: Any = moa_pb2_grpc.MoaStub(self._channel)
        self._described = described
        self._settings = settings
        self._scripts = scripts
        self._draft_ms = draft_ms
        self._drafting = DraftingSettings(drafting)
        self._byes = PendingByes()

    async def close(self) -> None:
        await self._byes.finish()
        await self._channel.close(None)

    async def ask(self, prompt: Sequence[int], answer: UserAnswer) -> None:
        call = self._stub.Converse()
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        reader = asyncio.create_task(_read(call, inbox))
        try:
            await self._converse(call, inbox, prompt, answer)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        except asyncio.InvalidStateError:
            raise UnavailableError(ENDED) from None
        finally:
            self._byes.begin(_leave(call, reader))

    async def _converse(self, call: Any, inbox: asyncio.Queue[Any], prompt: Sequence[int], answer: UserAnswer) -> None:
        loop = asyncio.get_running_loop()
        due: list[Draft | Ack] = []
        script = self._scripts[answer.question]
        device = ScriptedDevice(
            script.vocab_size,
            due.append,
            lambda: 1e3 * time.perf_counter(),
            script.guess,
            self._draft_ms,
            lambda ms, then: loop.call_later(ms / 1e3, inbox.put_nowait, then),
            self._drafting,
            plain_ms=self._described.step_ms,
        )
        await call.write(pb.ClientFrame(open=self._make_open()))
        await call.write(pb.ClientFrame(ask=ask_to_proto(device.ask(prompt, self._settings))))
        reader, drafts, owed = FrameReader(), DraftWriter(), _OwedCredit()
        while device.is_answering:
            item = await inbox.get()
            if isinstance(item, Exception):
                raise item
            if callable(item):  # a draft step is over
                item()
            else:
                for message in reader.read(item):
                    await self._take_in(call, device, message, answer, owed)
            for frame in due:
                await call.write(_client_frame(frame, drafts))
            due.clear()

    async def _take_in(
        self, call: Any, device: ScriptedDevice, message: Any, answer: UserAnswer, owed: _OwedCredit
    ) -> None:
        match message:
            case Memory():
                if taken := owed.on_memory(len(message.payload)):
                    await call.write(pb.ClientFrame(credit=pb.Credit(bytes=taken)))
            case GoAway():
                raise UnavailableError(f"The server is going away: {message.reason}.")
            case Beat():
                pass
            case _:
                answer.on_tokens(time.perf_counter(), device.on_verdict(message))

    def _make_open(self) -> pb.Open:
        drafters = self._described.drafters
        return make_open(
            self._described.identity,
            b"",
            (),
            None,
            codecs=[Codec.INT4.value] if drafters else [],
            memory_from=0,
            reused_state=bool(drafters) and drafters[0].reused_layers > 0,
            run_ahead=True,
            server_drafts=self._drafting.server_drafts,
        )


class _OwedCredit:
    """Bytes of memory that were taken in; reported to the server as often as the client program does."""

    def __init__(self) -> None:
        self._nbytes = 0

    def on_memory(self, nbytes: int) -> int:
        """Takes in so many bytes; those to report now."""
        self._nbytes += nbytes
        if self._nbytes < CREDIT_EVERY_BYTES:
            return 0
        taken, self._nbytes = self._nbytes, 0
        return taken


def _client_frame(frame: Draft | Ack, drafts: DraftWriter) -> pb.ClientFrame:
    if isinstance(frame, Draft):
        return pb.ClientFrame(draft=drafts.write(frame))
    return pb.ClientFrame(ack=pb.Ack(committed=frame.committed))


async def _read(call: Any, inbox: asyncio.Queue[Any]) -> None:
    """Puts the frames of a stream into the inbox, then the reason for its end."""
    try:
        while (frame := await call.read()) is not EOF:
            inbox.put_nowait(frame)
        inbox.put_nowait(UnavailableError(ENDED))
    except grpc.RpcError as error:
        inbox.put_nowait(error)


async def _leave(call: Any, reader: asyncio.Task[None]) -> None:
    """Says goodbye, so that the server frees the session at once, and reads until the stream ends, if it has not."""
    try:
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.write(pb.ClientFrame(bye=pb.Bye()))
            await call.done_writing()
            await reader
    finally:
        reader.cancel()
        call.cancel()
