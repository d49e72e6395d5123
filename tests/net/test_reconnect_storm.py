"""A crowd of clients whose server is gone: all come back, are told to wait where there is no room, and lose nothing."""

from __future__ import annotations

import asyncio
import random

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link.connection import Backoff, FrameReceived, ServerConnection, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import MoaError, OverloadedError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.protobuf_messages import VerdictReader, settings_to_proto

from tests.net.fleet_servers import Servers, address
from tests.net.server_peer import IDENTITY, plain_text, until

CLIENTS = 100  # 500 take a minute, most of it the clients' own; test_backoff.py has them in virtual time
ROOM = 25  # streams of a server afterwards
MOST_DIALS = 20  # of one client: a crowd that only waits for itself would need more with each one that comes
SETTINGS = AnswerSettings(max_tokens=8, ignore_end_of_text=True)
PROMPT = [5, 17, 42]


class LightClient:
    """A client that asks once and takes what the server decides; it has no drafter.

    Args:
        number: which of the crowd it is.
    """

    def __init__(self, address: str, number: int) -> None:
        self.fleet = Fleet([Server(address, 10.0, 60.0)])
        self.answer: list[int] = []
        self.dials = 0
        self.refused = 0
        self.error: MoaError | None = None
        self.is_done = asyncio.Event()
        self.waits_for_drafts = True  # of its first server, which so never ends the answer
        self._reader = VerdictReader()
        self._leaving: asyncio.Task[None] | None = None
        self._hashes = PrefixHashes()
        self._hashes.extend(PROMPT)
        self.connection = ServerConnection(
            self.fleet, self._make_open, self._take, self._hashes, Backoff(random.Random(number))
        )

    def _make_open(self, _: str) -> pb.Open:
        self.dials += 1
        self._reader = VerdictReader()
        tokens = [*PROMPT, *self.answer]
        ask = pb.Ask(
            id=1,
            base=len(tokens),
            prefix_hash=self._hashes.at(len(tokens)),
            sampling=settings_to_proto(SETTINGS),
            answer_start=len(PROMPT),
        )
        identity = pb.Identity()
        identity.CopyFrom(IDENTITY)
        identity.drafter_fingerprint = b""
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=identity,
            tokens=tokens,
            ask=ask,
            run_ahead=not self.waits_for_drafts,
        )

    def _take(self, happened: FrameReceived | StreamOpened | StreamLost) -> None:
        if not self.connection.accept(happened):
            return
        if isinstance(happened, StreamLost):
            self.refused += isinstance(happened.error, OverloadedError)
            if not happened.retrying:
                self.error = happened.error
                self.is_done.set()
        elif isinstance(happened, FrameReceived) and happened.frame.HasField("verdict"):
            verdict = self._reader.read_verdict(happened.frame.verdict)
            held = len(PROMPT) + len(self.answer)
            assert verdict.base <= held
            self.answer += verdict.tokens[held - verdict.base :]
            self._hashes.extend(verdict.tokens[held - verdict.base :])
            if verdict.finish == Finish.MAX_TOKENS:
                self.is_done.set()
                self._leaving = asyncio.create_task(self.connection.leave())

    async def close(self) -> None:
        if self._leaving is not None:
            await self._leaving
        await self.connection.drop()
        await self.fleet.close()


@pytest.mark.parametrize("goes_to", ["two replicas", "the same server"])
async def test_a_crowd_that_loses_its_server_finishes_every_answer(
    target: Target, servers: Servers, goes_to: str
) -> None:
    """The server is killed, and names nobody; it had named two replicas, or comes back itself."""
    replicas = ["two", "three"] if goes_to == "two replicas" else []
    for name in replicas:
        await servers.start(name, max_streams=ROOM)
    peers = ",".join(address(servers, name) for name in replicas)
    one = await servers.start("one", max_streams=CLIENTS, peers=peers)
    crowd = [LightClient(address(servers, "one"), number) for number in range(CLIENTS)]
    try:
        await asyncio.gather(*(client.fleet.describe() for client in crowd))
        for client in crowd:
            client.connection.start()
        await until(lambda: all(client.answer for client in crowd))
        for client in crowd:
            client.waits_for_drafts, client.dials = False, 0
        one.host.lifecycle.fleet.update([])
        await servers.stop("one")
        if not replicas:
            await servers.start("one", max_streams=ROOM)
        holders = [
            LightClient(address(servers, name), number) for name in servers.running for number in range(ROOM + 1)
        ]
        crowd += holders  # whose answers wait: there is no room for all at once
        for client in holders:
            client.connection.start()
        async with asyncio.timeout(60.0):
            await until(lambda: any(client.refused for client in crowd))
        for client in holders:
            await client.close()
            crowd.remove(client)
        async with asyncio.timeout(90.0):
            await asyncio.gather(*(client.is_done.wait() for client in crowd))
        assert [client.error for client in crowd if client.error] == []
        expected = plain_text(target, PROMPT, SETTINGS)[0]
        assert all(client.answer == expected for client in crowd)
        assert max(client.dials for client in crowd) <= MOST_DIALS
    finally:
        await asyncio.gather(*(client.close() for client in crowd))
