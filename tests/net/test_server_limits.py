"""What a server does when a caller has taken what it may, and when nothing is asked."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.access.keys import Gate, KeyBook, KeyEntry, hash_of
from moa_server.access.limits import CallerLimits, anonymous
from moa_server.app import RunningServer
from moa_server.service.admission import MOST_LINES, pause_seconds
from moa_server.verifier import Target
from moa_shared.errors import RateLimitError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc
from structlog.testing import capture_logs

from tests.net.server_peer import CONTEXT, Peer, channel_to, make_host, plain_text, serving, until
from tests.support.counted import Clock
from tests.support.messages import says

PROMPT = [5, 17, 33, 2, 64]
LONG = AnswerSettings(max_tokens=120, ignore_end_of_text=True)
SHORT = AnswerSettings(max_tokens=4, ignore_end_of_text=True)
CALLER = anonymous("ipv4:127.0.0.1:1")


async def answer_to_its_end(peer: Peer) -> None:
    """Reads the answer until it ends. MoaError: what it was interrupted by."""
    try:
        while (await peer.verdict()).finish == pb.FINISH_UNSPECIFIED:
            pass
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


async def resumed(running: RunningServer, token: bytes, tokens: Sequence[int], settings: AnswerSettings) -> Peer:
    """A peer that has come back for the rest of an answer; its Open is not answered yet."""
    peer = Peer(channel_to(running))
    peer.append(tokens)
    ask = peer.ask_message([], settings, answer_start=len(PROMPT))
    peer.tokens.clear()
    peer.hashes.crop(0)
    opening: Any = peer.open(tokens=tokens, memory=False, resume_token=token, run_ahead=True, ask=ask)
    try:
        await opening
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
    return peer


async def test_a_limit_in_the_middle_of_an_answer_delays_it_and_loses_no_word(target: Target) -> None:
    clock = Clock(1000.0)
    host = make_host(target, clock=clock, run_ahead_tokens=CONTEXT, tokens_per_minute=60)
    async with serving(host) as running:
        peer = Peer(channel_to(running))
        opened = await peer.open(memory=False, run_ahead=True)
        await peer.ask(PROMPT, LONG)
        with says(
            RateLimitError,
            "The server lets this address read and write 60 tokens a minute",
        ) as caught:
            await answer_to_its_end(peer)
        assert caught.value.retry_after_ms == 10_000
        rounds, computed = 0, len(peer.tokens)
        assert computed == 61  # a step more than a minute's worth, as the prompt's last token is paid for as fed
        while peer.tokens[len(PROMPT) :] != plain_text(target, PROMPT, LONG)[0]:
            with pytest.raises(RateLimitError):
                await resumed(running, opened.resume_token, peer.tokens, LONG)
            clock.now += 10.0
            peer = await resumed(running, opened.resume_token, peer.tokens, LONG)
            assert peer.opened is not None
            assert peer.opened.cached_tokens >= len(peer.tokens) - 1  # the session has waited
            try:
                await answer_to_its_end(peer)
            except RateLimitError:
                rounds += 1
        assert rounds == 6  # ten tokens each time


async def test_a_flood_is_refused_counted_and_hardly_logged(target: Target) -> None:
    host = make_host(target, peer_requests_per_minute=60)
    async with serving(host) as running:
        honest = Peer(channel_to(running))
        await honest.open(memory=False, run_ahead=True)
        with capture_logs() as logs:
            flood = asyncio.create_task(_flood(running, connections=20, calls=30))
            lengths = []
            for _ in range(10):
                start = len(honest.tokens) + len(PROMPT)
                await honest.ask(PROMPT, SHORT)
                await answer_to_its_end(honest)
                lengths.append(len(honest.tokens) - start)
            codes = await flood
        assert lengths == [SHORT.max_tokens] * 10
        refused = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert codes.count(grpc.StatusCode.OK) + refused == 600
        assert refused > 400  # a minute's worth, and what flows in meanwhile, are not
        assert sum(entry["event"] == "call refused" for entry in logs) == MOST_LINES
        (left_out,) = host.admission.refusals.take_left_out(host.services.clock() + 60.0)
        assert left_out == {"code": "rate_limit", "owner": CALLER.owner, "count": refused - MOST_LINES}


async def _flood(running: RunningServer, connections: int, calls: int) -> list[grpc.StatusCode]:
    """Calls one after the other on each of several connections: above 1,000 at once, gRPC drops some by itself."""

    async def connection() -> list[grpc.StatusCode]:
        codes = []
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=options) as channel:
            describe = moa_pb2_grpc.MoaStub(channel).Describe
            for _ in range(calls):
                try:
                    await describe(pb.DescribeRequest())
                    codes.append(grpc.StatusCode.OK)
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
        return codes

    return [code for codes in await asyncio.gather(*(connection() for _ in range(connections))) for code in codes]


def keys(**limits: CallerLimits) -> Gate:
    """A gate for keys of these names."""
    entries = [KeyEntry(name, hash_of(secret(name)), limits=limit) for name, limit in limits.items()]
    return Gate(fixed=KeyBook.of(entries))


def secret(name: str) -> str:
    return f"moa_{name:_<40}"


def with_key(running: RunningServer, name: str) -> Peer:
    """A client with a key, on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=options)
    return Peer(channel, metadata=(("authorization", f"Bearer {secret(name)}"),))


async def test_metadata_beyond_the_setting_is_refused(target: Target) -> None:
    async with serving(make_host(target, metadata_bytes=1024)) as running, channel_to(running) as channel:
        await Peer(channel, metadata=(("x", "y" * 500),)).open(memory=False)
        assert await Peer(channel, metadata=(("x", "y" * 3000),)).call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_strangers_of_an_address_and_of_a_connection_cost_a_good_key_nothing(target: Target) -> None:
    host = make_host(target, gate=keys(honest=CallerLimits()), peer_requests_per_minute=60)
    async with serving(host) as running, channel_to(running) as shared:  # as behind a proxy
        describe = moa_pb2_grpc.MoaStub(shared).Describe
        strangers = [asyncio.ensure_future(_code(describe, f"wrong{number}")) for number in range(100)]
        allowances = host.admission.connections._kept
        await until(lambda: any(pause_seconds(each) > 1.0 for each in allowances.values()))
        assert {await _code(describe, "honest") for _ in range(20)} == {grpc.StatusCode.OK}
        assert all(pause_seconds(each) == 0.0 for name, each in allowances.items() if "key" in name)
        refused = await asyncio.gather(*strangers)
        assert set(refused) == {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def _code(describe: Any, name: str) -> grpc.StatusCode:
    """How a call with this key ends."""
    call = describe(pb.DescribeRequest(), metadata=(("authorization", f"Bearer {secret(name)}"),))
    code: grpc.StatusCode = await call.code()
    return code
