"""Links that come to nothing, for the reasons that users meet, and faults of TLS: each is named in words for people, in each kind of
call, and what is open goes on.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.doctor import check_tls
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.access.keys import Gate, KeyBook, KeyEntry, hash_of
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import AuthenticationError, MoaError, UnavailableError
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_device import device
from tests.net.client_talk import Screen, server_at, talking_to, watch
from tests.net.server_peer import GREEDY, PROMPT, VOCAB, Peer, make_host, plain_text, serving
from tests.support.certificates import Authority, Pair
from tests.support.messages import GRPC_WORDS, says, steady

PLAIN = Security(insecure=True)


async def check(
    address: str,
    reason: str,
    security: Security = PLAIN,
    seconds: float = 60.0,
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


async def test_a_renewed_link_does_not_wait_for_the_attempt_of_the_one_before() -> None:
    """The peer takes connections and says nothing, as one does behind a link that was cut."""
    taken = 0

    async def wait(*_: object) -> None:
        nonlocal taken
        taken += 1
        await asyncio.Event().wait()

    async with listening(wait) as address, connect([Server(address, 5.0, 20.0, PLAIN)]) as link:
        while taken < 2:  # gRPC itself waits for 20 s
            with pytest.raises(UnavailableError):
                await link.servers[0].open(pb.Open(), 0.3)
            link.servers[0].renew(link.servers[0].channel_number)


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


@pytest.mark.parametrize(("status", "first", "reason"), [
    (grpc.StatusCode.RESOURCE_EXHAUSTED, NO_ROOM, NO_ROOM),
    (grpc.StatusCode.UNAUTHENTICATED, NO_KEY, NO_KEY),
    (grpc.StatusCode.UNAVAILABLE, "There is", "the connection could not be made, or was lost"),
    (grpc.StatusCode.CANCELLED, "There is", "the connection could not be made, or was lost"),
    (grpc.StatusCode.INTERNAL, "There is", "what answers there is no moa server, or does not work"),
])  # fmt: skip
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
        async with connect([Server("gpu.example:1", 60.0, 60.0, PLAIN)]) as fleet:
            assert (await fleet.describe()).identity.target_id == "tiny"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    async with connect([Server(f"127.0.0.1:{server.port}", 60.0, 60.0)]) as fleet:
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


KEY = "moa_" + "k" * 43


@asynccontextmanager
async def tls_server(
    target: Target, folder: Path, pair: Pair, client_ca: Path | None = None, **settings: Any
) -> AsyncIterator[RunningServer]:
    certificate, key = pair.write(folder)
    host = make_host(target, tls_cert=certificate, tls_key=key, tls_client_ca=client_ca, **settings)
    async with serving(host) as running:
        yield running


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> Path:
    return authority.write(tmp_path)


async def refusal(port: int, security: Security) -> str:
    """What a client says that gets nowhere."""
    async with connect([server_at(port, security)]) as link:
        try:
            await link.describe()
        except MoaError as error:
            return steady(str(error))
        return ""


async def test_a_conversation_over_tls_with_a_key(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path
) -> None:
    """A key that is missing or wrong is not tried again and again."""
    gate, held = Gate(fixed=KeyBook.of([KeyEntry("ada", hash_of(KEY))])), device(target, "none")
    async with tls_server(target, tmp_path, authority.issue(), gate=gate) as running:
        for host in ("127.0.0.1", "localhost"):
            server = server_at(f"{host}:{running.port}", Security(tls=True, authorities=trusted, key=KEY))
            async with talking_to([server], held) as (_, engine):
                await watch(engine, screen := Screen(), PROMPT, GREEDY)
                assert screen.text == plain_text(target, PROMPT, GREEDY)[0]
        for key in ("", "wrong"):
            async with connect([server_at(running.port, Security(tls=True, authorities=trusted, key=key))]) as link:
                engine = ClientEngine(link, held, VOCAB, Codec.INT4)
                for call in (link.describe(), watch(engine, Screen(), PROMPT, GREEDY)):
                    with says(AuthenticationError, "Add the server again with its key"):
                        await call
                await engine.close()


async def test_certificates_that_are_not_accepted(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named, so that a user knows whom to ask."""
    secure = Security(tls=True, authorities=trusted)
    said = {}
    async with tls_server(target, tmp_path, authority.issue(names=("gpu.example",))) as running:
        said["name"] = await refusal(running.port, secure)
    async with tls_server(target, tmp_path, Authority("other").issue()) as running:
        said["authority"] = await refusal(running.port, secure)
    monkeypatch.setattr("moa_server.tls._check_dates", lambda *_: None)  # it would not start
    async with tls_server(target, tmp_path, authority.issue(days=-1)) as running:
        said["expired"] = await refusal(running.port, secure)
    assert said == snapshot(
        {
            "name": "The server at 127.0.0.1:PORT cannot be used: its certificate is for another name. Use the name or address that the certificate is for, or have a certificate made for this one.",
            "authority": "The server at 127.0.0.1:PORT cannot be used: nobody whom this device trusts vouches for its certificate. Name the certificate of the authority that does with --tls-ca FILE.",
            "expired": "The server at 127.0.0.1:PORT cannot be used: its certificate has expired. Whoever runs the server must renew it; or this device's clock is wrong.",
        }
    )


async def test_clients_that_must_show_a_certificate(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path
) -> None:
    async with tls_server(target, tmp_path, authority.issue(), client_ca=trusted) as running:

        def showing(pair: Pair, name: str) -> Security:
            certificate, key = pair.write(tmp_path, name)
            return Security(tls=True, authorities=trusted, certificate=certificate, private_key=key)

        said = {
            "none": await refusal(running.port, Security(tls=True, authorities=trusted)),
            "of another authority": await refusal(running.port, showing(Authority("other").issue("eve"), "eve")),
            "good": await refusal(running.port, showing(authority.issue("alice"), "alice")),
        }
        assert said == snapshot(
            {
                "none": "The server at 127.0.0.1:PORT cannot be used: it wants a certificate of this device. Ask whoever runs the server for one, and name it with --tls-cert FILE --tls-key FILE.",
                "of another authority": "The server at 127.0.0.1:PORT cannot be used: it does not accept this device's certificate. Ask whoever runs the server for one that has not expired, of an authority that it knows (its --tls-client-ca).",
                "good": "",
            }
        )
        with says(UnavailableError, "The server cannot be used: it wants a certificate of this device"):  # the doctor
            await check_tls(f"127.0.0.1:{running.port}", Security(tls=True, authorities=trusted))


async def test_a_renewed_certificate_is_used_by_the_next_connection_and_harms_no_open_one(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path
) -> None:
    credentials = grpc.ssl_channel_credentials(authority.certificate)
    async with (
        tls_server(target, tmp_path, authority.issue()) as running,
        grpc.aio.secure_channel(f"127.0.0.1:{running.port}", credentials) as channel,
    ):
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()  # no draft comes, so its answer waits
        authority.issue(names=("gpu.example",)).write(tmp_path)  # the client can tell it from the first
        assert running.tls is not None
        running.tls.refresh(at_once=True)
        refused = await refusal(running.port, Security(tls=True, authorities=trusted))
        assert "its certificate is for another name" in refused
        assert await peer.finish(in_rounds=True) == plain_text(target, PROMPT, GREEDY)[0]


async def test_a_renewed_authority(target: Target, authority: Authority, trusted: Path, tmp_path: Path) -> None:
    """The server has a new authority first, then the device: the same link connects again by itself."""
    secure = Security(tls=True, authorities=trusted)
    async with tls_server(target, tmp_path, authority.issue()) as running:
        link = server_at(running.port, secure)
        try:
            renewed = Authority("renewed")
            renewed.issue().write(tmp_path)
            assert running.tls is not None
            running.tls.refresh(at_once=True)
            assert "nobody whom this device trusts" in await refusal(running.port, secure)
            with says(UnavailableError, "The server cannot be reached: nobody whom this device trusts vouches for its"):
                await link.open(pb.Open())  # what a conversation says that comes back
            renewed.write(tmp_path)
            with says(UnavailableError, "cannot be used: nobody whom this device trusts"):
                await link.describe()  # over the connection that has failed; the next one is new
            await link.describe()
        finally:
            await link.close()
