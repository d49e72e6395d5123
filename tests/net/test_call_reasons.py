"""Links that come to nothing, for the reasons that users meet: each is named in words for people, in each kind of call."""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.doctor import ServerExamination
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import MoaError
from moa_shared.programs.machine import Check, check_line, exit_code
from moa_shared.programs.progress import SilentProgress

from tests.net.server_peer import make_host, serving, silent
from tests.support.certificates import Authority
from tests.support.messages import GRPC_WORDS, steady

PLAIN = Security(insecure=True)


async def check(
    address: str,
    reason: str,
    security: Security = PLAIN,
    seconds: float = 5.0,
    *,
    first: str = "There is no moa server at",
    has_answered: bool = False,
) -> None:
    """A description, a download and a conversation that fail say so, and why.

    `first`: how the description's sentence begins. `has_answered`: a moa server was there before.
    """
    async with connect([Server(address, seconds, seconds, security)]) as fleet:
        [server] = fleet.servers
        if has_answered:
            server.rtt_ms = 1.0

        async def fetch() -> None:
            async for _ in server.fetch(pb.FetchDrafterRequest()):
                pass

        lines = []
        for call in (server.describe(), fetch(), server.open(pb.Open())):
            with pytest.raises(MoaError) as caught:
                await call
            lines.append(steady(caught.value.message))
    assert not any(GRPC_WORDS.search(line) for line in lines)
    assert lines[0].startswith(first)
    assert all(reason in line for line in lines), lines


@asynccontextmanager
async def listening(answer: Any) -> AsyncIterator[str]:
    """The address of something that answers connections so."""
    writers: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await answer(reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


@asynccontextmanager
async def refusing(
    status: grpc.StatusCode, words: str, tls: Authority | None = None, folder: Path | None = None
) -> AsyncIterator[str]:
    """The address of a gRPC server that ends each call so."""

    async def end(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(status, words)

    methods = {
        "Describe": grpc.unary_unary_rpc_method_handler(end),
        "FetchDrafter": grpc.unary_stream_rpc_method_handler(end),
        "Converse": grpc.stream_stream_rpc_method_handler(end),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("moa.v1.Moa", methods),))
    if tls is None or folder is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        certificate, key = tls.issue().write(folder)
        pair = [(key.read_bytes(), certificate.read_bytes())]
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_nobody_listens_or_the_name_is_not_known() -> None:
    await check(f"127.0.0.1:{unused_port()}", "the connection was refused")
    await check("nowhere.invalid:50051", "the name is not known")


async def test_what_takes_connections_and_says_nothing() -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    async with listening(wait) as address:
        await check(address, "127.0.0.1:PORT", seconds=0.3)


CLOSES = "what listens there closes the connection: it speaks TLS only, or no gRPC, or has no room"


async def test_what_resets_connections() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        taken = writer.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with listening(reset) as address:
        await check(address, CLOSES)
        await check(address, "the connection was closed; the server may have ended", has_answered=True)


async def test_what_speaks_http_1() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with listening(answer) as address:
        await check(address, "what listens there does not speak gRPC")


async def test_tls_at_one_end_only(tmp_path: Path) -> None:
    async with refusing(grpc.StatusCode.UNKNOWN, "") as address:
        secure = Security(tls=True, authorities=Authority().write(tmp_path))
        await check(address, "what listens there does not speak TLS", secure, first="The server at")
    async with refusing(grpc.StatusCode.UNKNOWN, "", Authority(), tmp_path) as address:
        await check(address, CLOSES)


NO_ROOM = "The server, or a proxy before it, has no room for this call."
NO_KEY = "The server does not accept this client's API key, or wants one."


@pytest.mark.parametrize(
    ("status", "first", "reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, NO_ROOM, NO_ROOM),
        (grpc.StatusCode.UNAUTHENTICATED, NO_KEY, NO_KEY),
        (grpc.StatusCode.UNAVAILABLE, "There is", "the connection could not be made, or was lost"),
        (grpc.StatusCode.CANCELLED, "There is", "the connection could not be made, or was lost"),
        (grpc.StatusCode.INTERNAL, "There is", "what answers there is no moa server, or does not work"),
    ],
)
async def test_a_status_that_no_moa_server_has_sent(status: grpc.StatusCode, first: str, reason: str) -> None:
    for words in ("", "upstream: UNKNOWN: ipv4:10.0.0.1:80: nope"):
        async with refusing(status, words) as address:
            await check(address, reason, first=first)


async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Answers as a proxy does that connects everybody to a port of this machine."""
    await reader.readuntil(b"\r\n\r\n")
    there, to_there = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    ways = [(reader, to_there), (there, writer)]
    try:
        await asyncio.gather(*(_copy(source, sink) for source, sink in ways))
    finally:
        to_there.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(data)
    sink.transport.abort()


async def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    proxied = "The proxy 127.0.0.1:PORT, which https_proxy names,"
    async with listening(refuse) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        await check("gpu.example:1", "the proxy lets no connection through, or finds nothing there", first=proxied)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{unused_port()}")
    await check("gpu.example:1", "the connection was refused", first=proxied)


async def test_a_server_behind_a_proxy_is_reached_and_one_of_this_machine_directly(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(partial(through, port=server.port)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        async with connect([Server("gpu.example:1", 5.0, 5.0, PLAIN)]) as fleet:
            assert (await fleet.describe()).identity.target_id == "tiny"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    async with connect([Server(f"127.0.0.1:{server.port}", 5.0, 5.0)]) as fleet:
        assert (await fleet.describe()).identity.target_id == "tiny"


async def test_tls_fails_behind_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    trusting = Security(tls=True, authorities=authority.write(tmp_path))
    async with refusing(grpc.StatusCode.UNIMPLEMENTED, "", authority, tmp_path) as address:
        port = int(address.rpartition(":")[2])
        async with listening(partial(through, port=port)) as proxy:
            monkeypatch.setenv("http_proxy", f"http://ada:key@{proxy}")
            first = "The server at 192.0.2.7:1 cannot be used"
            await check("192.0.2.7:1", "its certificate is for another name", trusting, first=first)


NUMBER = re.compile(r"\b\d+(?:\.\d+)?(?:e[+-]\d+)?(?= (?:ms|more|B|kB|MB|s\b))")


async def examine(address: str, cache: Path, security: Security | None = None) -> tuple[list[Check], list[str]]:
    """All steps, and what was waited for."""
    settings = ClientSettings(server=address, connect_seconds=0.5, cache_dir=cache)
    link = Server(address, settings.connect_seconds, 1.0, security or Security(insecure=True))
    waited: list[str] = []
    try:
        return [each async for each in ServerExamination(settings, link, SilentProgress(), waited.append).run()], waited
    finally:
        await link.close()


def shown(checks: Sequence[Check]) -> str:
    """The lines with N for each number that was measured."""
    lines = [check_line(each) for each in checks if each.state != "skip"]
    text = steady("".join(lines)).replace(f"moa {version('moa-split')}", "moa V")
    return re.sub(r"[kM]B/s \(\w+ [kM]B", "B/s (N B", NUMBER.sub("N", text))


async def test_a_server_that_is_well(target: Target, tmp_path: Path) -> None:
    async with serving(make_host(target)) as running:
        checks, waited = await examine(f"127.0.0.1:{running.port}", tmp_path)
        assert shown(checks) == snapshot("""\
  ok    server       tiny at float32, moa V, protocol 4
  ok    TLS          not used: nothing leaves this machine
  ok    round trip   N ms, the median of 7; 0 % of the server is taken
  warn  drafter      not here yet: toy
                     The first chat fetches it from the server.
  ok    companion    none (docs/drafters.md#a-companion)
""")
        skipped = [each.name for each in checks if each.state == "skip"]
        assert skipped == ["download", "drafts"]
        assert len(waited) == len(checks)
        assert exit_code(checks) == 0


async def test_what_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async with silent() as (port, _):
        checks, _ = await examine(f"127.0.0.1:{port}", tmp_path)
        assert shown(checks) == snapshot("""\
  fail  server       There is no moa server at 127.0.0.1:PORT: nothing answered within N s
                     Check --server HOST:PORT, and that moa-server runs there.
""")
