"""Keys at a server: who may call, whose sessions are whose, and what happens when a key is taken back."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.access.keys import Gate, KeyEntry, changing, hash_of, new_key
from moa_server.access.limits import CallerLimits, Right
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import AuthenticationError, MoaError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_device import device, stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, watch
from tests.net.server_peer import VOCAB, Peer, make_host, plain_text, serving

SHORT = AnswerSettings(max_tokens=6, ignore_end_of_text=True)


class Keys:
    """A file of keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, rights: frozenset[Right] = frozenset(Right), **limits: int) -> str:
        key = new_key()
        with changing(self.path) as book:
            book[0] = book[0].with_entry(KeyEntry(name, hash_of(key), rights, CallerLimits(**limits)))
        return key

    def revoke(self, name: str) -> None:
        with changing(self.path) as book:
            book[0] = book[0].without(name)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.toml")


@asynccontextmanager
async def guarded(target: Target, keys: Keys, **settings: Any) -> AsyncIterator[RunningServer]:
    host = make_host(target, stepper=stepper(target, 0), gate=Gate(keys.path), **settings)
    async with serving(host) as running:
        yield running


def with_key(key: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {key}"),)}


@asynccontextmanager
async def channel_of(running: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield channel


async def refusal_of(call: Awaitable[Any]) -> MoaError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from_rpc(caught.value)


async def answer(peer: Peer) -> None:
    """A short answer, to its end."""
    await peer.ask(PROMPT, SHORT)
    while not (peer.verdicts and peer.verdicts[-1].finish):
        await peer.receive()


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_no_call_is_answered_without_a_key(target: Target, keys: Keys, key: str | None) -> None:
    keys.add("laptop")
    metadata = (("authorization", f"Bearer {key}"),) if key else None
    async with guarded(target, keys) as running, channel_of(running) as channel:
        stub = moa_pb2_grpc.MoaStub(channel)
        calls = [
            stub.Describe(pb.DescribeRequest(), metadata=metadata),
            anext(aiter(stub.Generate(pb.GenerateRequest(tokens=PROMPT), metadata=metadata))),
            anext(aiter(stub.FetchDrafter(pb.FetchDrafterRequest(), metadata=metadata))),
            Peer(channel, metadata=metadata).receive(),  # before its Open
        ]
        for call in calls:
            assert isinstance(await refusal_of(call), AuthenticationError)
        assert not running.host.services.registry.live_sessions


async def test_a_resume_token_of_anothers_session_is_as_good_as_unknown(target: Target, keys: Keys) -> None:
    mine, theirs = keys.add("mine"), keys.add("theirs")
    async with guarded(target, keys) as running, channel_of(running) as channel:
        owner = Peer(channel, **with_key(mine))
        opened = await owner.open(run_ahead=True)
        await answer(owner)
        thief = Peer(channel, **with_key(theirs))
        given = await thief.open(tokens=owner.tokens, resume_token=opened.resume_token)
        assert given.resume_token != opened.resume_token
        assert given.cached_tokens == 0
        assert len(running.host.services.registry) == 2
        again = Peer(channel, **with_key(mine))
        found = await again.open(tokens=owner.tokens, resume_token=opened.resume_token)
        assert found.resume_token == opened.resume_token
        assert found.cached_tokens > 0


@pytest.mark.parametrize("why", ["revoked", "expired"])
async def test_a_key_that_ends_in_the_middle_of_an_answer(target: Target, keys: Keys, why: str) -> None:
    """The words so far stay, one sentence says why there are no more, and the session is gone."""
    key = keys.add("laptop")
    now = [datetime(2026, 11, 23, tzinfo=UTC)]
    if why == "expired":
        with changing(keys.path) as book:
            entry = replace(book[0].entries["laptop"], expires=now[0] + timedelta(hours=1))
            book[0] = book[0].without("laptop").with_entry(entry)
    host = make_host(target, stepper=stepper(target, 0), gate=Gate(keys.path, now=lambda: now[0]))
    screen = Screen()
    async with (
        serving(host) as running,
        connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0, Security(key=key))]) as link,
    ):
        engine = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4)

        async def end_the_key(event: object) -> None:
            if screen.committed and now[0].hour == 0:
                if why == "revoked":
                    keys.revoke("laptop")
                now[0] += timedelta(hours=2)
                host.admission.gate.refresh()
                host.end_refused()

        try:
            with pytest.raises(AuthenticationError) as caught:
                await watch(engine, screen, PROMPT, replace(SETTINGS, max_tokens=150), end_the_key)
        finally:
            await engine.close()
        assert str(caught.value).startswith(f"This API key {'was revoked' if why == 'revoked' else 'has expired'}")
        whole = plain_text(target, PROMPT, replace(SETTINGS, max_tokens=150))[0]
        assert 0 < len(screen.committed) < len(whole)
        assert screen.committed == whole[: len(screen.committed)]
        assert not host.services.registry.live_sessions
