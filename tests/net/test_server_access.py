"""Who may call a server, and how much: keys, floods, limits in the middle of an answer; honest clients lose nothing."""

import asyncio
from collections.abc import Awaitable
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
from moa_server.access.keys import Gate, KeyBook, KeyEntry, changing, hash_of
from moa_server.access.limits import anonymous
from moa_server.service.admission import pause_seconds
from moa_server.verifier import Target
from moa_shared.errors import AuthenticationError, MoaError
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings

from tests.net.client_device import device, stepper
from tests.net.client_talk import Screen, watch
from tests.net.server_peer import PROMPT, VOCAB, Peer, channel_to, make_host, plain_text, serving, until

LONG = AnswerSettings(max_tokens=120, ignore_end_of_text=True)
SHORT = AnswerSettings(max_tokens=4, ignore_end_of_text=True)
CALLER = anonymous("ipv4:127.0.0.1:1")
BOOK = KeyBook.of([KeyEntry(name, hash_of(f"moa_{name:_<40}")) for name in ("mine", "theirs")])


def with_key(name: str) -> Any:
    return (("authorization", f"Bearer moa_{name:_<40}"),)


async def refusal_of(call: Awaitable[Any]) -> MoaError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from_rpc(caught.value)


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_no_call_is_answered_without_a_key(target: Target, key: str | None) -> None:
    metadata = with_key(key) if key else None
    async with serving(make_host(target, gate=Gate(fixed=BOOK))) as running, channel_to(running) as channel:
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


async def test_a_resume_token_of_anothers_session_is_as_good_as_unknown(target: Target) -> None:
    async with serving(make_host(target, gate=Gate(fixed=BOOK))) as running, channel_to(running) as channel:
        owner = Peer(channel, metadata=with_key("mine"))
        token = (await owner.open(run_ahead=True)).resume_token
        await owner.answer(PROMPT, SHORT)
        thief, again = Peer(channel, metadata=with_key("theirs")), Peer(channel, metadata=with_key("mine"))
        given = await thief.open(tokens=owner.tokens, resume_token=token)
        assert (given.resume_token == token, given.cached_tokens) == (False, 0)
        assert len(running.host.services.registry) == 2
        found = await again.open(tokens=owner.tokens, resume_token=token)
        assert (found.resume_token == token, found.cached_tokens > 0) == (True, True)


@pytest.mark.parametrize("why", ["was revoked", "has expired"])
async def test_a_key_that_ends_in_the_middle_of_an_answer(target: Target, tmp_path: Path, why: str) -> None:
    """The words so far stay, one sentence says why there are no more, and the session is gone."""
    now, path = [datetime(2026, 11, 23, tzinfo=UTC)], tmp_path / "keys.toml"
    entry = replace(BOOK.entries["mine"], expires=now[0] + timedelta(hours=1) if why == "has expired" else None)
    with changing(path) as book:
        book[0] = book[0].with_entry(entry)
    host, screen = make_host(target, stepper=stepper(target, 0), gate=Gate(path, now=lambda: now[0])), Screen()
    security = Security(key=f"moa_{'mine':_<40}")
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0, security)]) as link:
        engine = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4)

        async def end_the_key(_: object) -> None:
            if screen.committed and now[0].hour == 0:
                if why == "was revoked":
                    with changing(path) as book:
                        book[0] = book[0].without("mine")
                now[0] += timedelta(hours=2)
                host.admission.gate.refresh()
                host.end_refused()

        with pytest.raises(AuthenticationError, match=f"^This API key {why}"):
            await watch(engine, screen, PROMPT, LONG, end_the_key)
        await engine.close()
        whole = plain_text(target, PROMPT, LONG)[0]
        assert 0 < len(screen.committed) < len(whole)
        assert screen.committed == whole[: len(screen.committed)]
        assert not host.services.registry.live_sessions


async def test_metadata_beyond_the_setting_is_refused(target: Target) -> None:
    async with serving(make_host(target, metadata_bytes=1024)) as running, channel_to(running) as channel:
        await Peer(channel, metadata=(("x", "y" * 500),)).open(memory=False)
        assert await Peer(channel, metadata=(("x", "y" * 3000),)).call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_strangers_of_an_address_and_of_a_connection_cost_a_good_key_nothing(target: Target) -> None:
    host = make_host(target, gate=Gate(fixed=BOOK), peer_requests_per_minute=60)
    allowances = host.admission.connections._kept
    async with serving(host) as running, channel_to(running) as shared:  # as behind a proxy
        describe: Any = moa_pb2_grpc.MoaStub(shared).Describe

        async def code(name: str) -> grpc.StatusCode:
            found: grpc.StatusCode = await describe(pb.DescribeRequest(), metadata=with_key(name)).code()
            return found

        strangers = [asyncio.ensure_future(code(f"wrong{number}")) for number in range(100)]
        await until(lambda: any(pause_seconds(each) > 1.0 for each in allowances.values()))
        assert {await code("mine") for _ in range(20)} == {grpc.StatusCode.OK}
        assert all(pause_seconds(each) == 0.0 for name, each in allowances.items() if "key" in name)
        refused = await asyncio.gather(*strangers)
        assert set(refused) == {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}
