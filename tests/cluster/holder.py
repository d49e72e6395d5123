"""A client that opens streams at one replica, and holds answers there that wait for its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_from_rpc

from tests.net.server_peer import Peer

PROMPT = [5, 17, 42, 8, 17, 42]


class Holder:
    """One caller at one replica. `channel`: to the replica. `key`: the caller's; empty: none."""

    def __init__(self, channel: grpc.aio.Channel, key: str = "") -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def describe(self) -> pb.DescribeResponse:
        with _errors():
            answer: pb.DescribeResponse = await moa_pb2_grpc.MoaStub(self._channel).Describe(
                pb.DescribeRequest(), metadata=self._metadata
            )
        return answer

    async def hold(self, tokens: int) -> Peer:
        """Begins an answer of so many tokens, which goes no further than its client's drafts."""
        identity = (await self.describe()).identity
        peer = Peer(self._channel, metadata=self._metadata)
        with _errors():
            ask = peer.ask_message(PROMPT, AnswerSettings(max_tokens=tokens, ignore_end_of_text=True))
            await peer.send(open=pb.Open(protocol_version=PROTOCOL_VERSION, identity=identity, ask=ask))
            while not peer.verdicts:
                await peer.receive()
        return peer


@contextmanager
def _errors() -> Iterator[None]:
    """What the server refused with, as an error of the catalogue."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
