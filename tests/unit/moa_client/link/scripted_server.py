"""Servers of a fleet that answer when and what a test says, without a network."""

import asyncio
from collections.abc import Sequence
from typing import cast
from zlib import crc32

from moa.v1 import moa_pb2 as pb
from moa_client.link.server import Server
from moa_client.link.stream import Stream, StreamTraffic
from moa_shared.errors import MoaError, UnavailableError

MODEL = pb.Identity(target_id="tiny", target_fingerprint=b"t", tokenizer_hash=b"k", execution=b"e")


class ScriptedServer(Server):
    """A server to which no call leaves this program.

    `identity`: of what it serves. `named`: others of its fleet, as it says.
    """

    def __init__(self, name: str, identity: pb.Identity = MODEL, named: Sequence[str] = ()) -> None:
        super().__init__(f"127.0.0.1:{1 + crc32(name.encode()) % 60_000}", 5.0, 5.0, name=name)
        self.description = pb.DescribeResponse(identity=identity, servers=named)
        self.failure: MoaError | None = None  # of each call
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.has_answered = asyncio.Event()
        self.asked = self.opened = self.renewed = 0

    def fail(self, error: MoaError | None = None) -> None:
        """From now on it does not answer."""
        self.failure = error or UnavailableError(f"{self.name} is gone.", hint="")

    def renew(self, lost: int) -> None:
        self.renewed += 1

    async def describe(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        self.asked += 1
        await self.may_answer.wait()
        self.error = self.failure
        if self.failure is not None:
            raise self.failure
        self.served, self.named = self.description, tuple(self.description.servers)
        self.has_answered.set()
        return self.description

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: StreamTraffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        return cast(Stream, None), pb.Opened()
