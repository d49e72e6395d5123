"""A server as an attacker sees it: what it says of itself, and the calls that can be made.

State: a gRPC channel of its own. Frames are sent as they are given, with no care for what the server answers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION

CALL = "/moa.v1.Moa/"
FAILURES = (grpc.RpcError, asyncio.InvalidStateError)  # what a call that the server has ended raises


class Victim:
    """A server under attack.

    Args:
        address: "host:port".
        compression: of everything that is sent.
    """

    def __init__(self, address: str, compression: grpc.Compression | None = None) -> None:
        self.address = address
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel: Any = grpc.aio.insecure_channel(address, options, compression=compression)
        self.described = pb.DescribeResponse()

    async def describe(self) -> None:
        self.described = pb.DescribeResponse.FromString(await self.channel.unary_unary(CALL + "Describe")(b""))

    @property
    def context(self) -> int:
        """The most tokens of a conversation."""
        return self.described.limits.context_tokens

    def open_message(self, tokens: Sequence[int] = (), ask: pb.Ask | None = None) -> pb.Open:
        """A handshake that the server accepts; it may run ahead."""
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=self.described.identity,
            codecs=[pb.CODEC_INT4] if self.described.drafters else [],
            tokens=tokens,
            ask=ask,
            run_ahead=True,
            credit_bytes=1 << 30,
        )

    def stream(self, **options: Any) -> Any:
        return self.channel.stream_stream(CALL + "Converse")(**options)

    async def opened(self, message: pb.Open | None = None) -> Any:
        """A Converse call whose Open the server has answered."""
        call = self.stream()
        await send(call, open=message or self.open_message())
        await call.read()
        return call


async def send(call: Any, **frame: Any) -> None:
    await call.write(pb.ClientFrame(**frame).SerializeToString())
