"""Links that come to nothing, for the reasons that users meet: each is named in words for people, in each kind of call."""

from __future__ import annotations

import asyncio
import re
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
from moa_client.doctor.steps import check_connection, check_name, check_tls
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.cluster.connection import connected
from moa_server.running.running_server import RunningServer
from moa_shared.errors import MoaError

from tests.support.certificates import Authority
from tests.support.messages import GRPC_WORDS, steady

PLAIN = Security(insecure=True)


async def said(
    address: str, security: Security = PLAIN, seconds: float = 5.0, *, has_answered: bool = False
) -> list[str]:
    """What a description, a download and a conversation say that fail.

    Args:
        has_answered: a moa server was there before.
    """
    async with connect([Server(address, seconds, seconds, security)]) as fleet:
        [server] = fleet.servers
        if has_answered:
            server.first_rtt_ms = 1.0

        async def fetch() -> None:
            async for _ in server.fetch(pb.FetchDrafterRequest()):
                pass

        lines = []
        for call in (server.describe(), fetch(), server.open(pb.Open())):
            with pytest.raises(MoaError) as caught:
                await call
            lines.append(steady(caught.value.message))
        assert not any(GRPC_WORDS.search(line) for line in lines)
        return lines


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


async def test_refused() -> None:
    assert await said(f"127.0.0.1:{unused_port()}") == snapshot(
        [
            "There is no moa server at 127.0.0.1:PORT: the connection was refused.",
            "The server cannot be reached: the connection was refused.",
            "The server cannot be reached: the connection was refused.",
        ]
    )


async def test_a_name_that_nobody_has() -> None:
    assert await said("nowhere.invalid:50051") == snapshot(
        [
            "There is no moa server at nowhere.invalid:50051: the name is not known.",
            "The server cannot be reached: the name is not known.",
            "The server cannot be reached: the name is not known.",
        ]
    )


async def test_what_takes_connections_and_says_nothing() -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    async with listening(wait) as address:
        assert await said(address, seconds=0.3) == snapshot(
            [
                "There is no moa server at 127.0.0.1:PORT: nothing answered within 0.3 s.",
                "The server at 127.0.0.1:PORT has sent nothing for 0.3 s.",
                "The server at 127.0.0.1:PORT did not open the conversation in time.",
            ]
        )


async def test_what_resets_connections() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        taken = writer.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with listening(reset) as address:
        assert await said(address) == snapshot(
            [
                "There is no moa server at 127.0.0.1:PORT: what listens there closes the connection: it does not speak gRPC, or has no room.",
                "The server cannot be reached: what listens there closes the connection: it does not speak gRPC, or has no room.",
                "The server cannot be reached: what listens there closes the connection: it does not speak gRPC, or has no room.",
            ]
        )
        assert await said(address, has_answered=True) == snapshot(
            [
                "There is no moa server at 127.0.0.1:PORT: the connection was closed; the server may have ended.",
                "The server cannot be reached: the connection was closed; the server may have ended.",
                "The server cannot be reached: the connection was closed; the server may have ended.",
            ]
        )


async def test_what_speaks_http_1() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with listening(answer) as address:
        assert await said(address) == snapshot(
            [
                "There is no moa server at 127.0.0.1:PORT: what listens there does not speak gRPC.",
                "The server cannot be reached: what listens there does not speak gRPC.",
                "The server cannot be reached: what listens there does not speak gRPC.",
            ]
        )


async def test_tls_to_a_port_without(tmp_path: Path) -> None:
    async with refusing(grpc.StatusCode.UNKNOWN, "") as address:
        assert await said(address, Security(tls=True, authorities=Authority().write(tmp_path))) == snapshot(
            [
                "The server at 127.0.0.1:PORT cannot be used: what listens there does not speak TLS. Leave --tls out, or use the port on which the server speaks TLS.",
                "The server cannot be reached: what listens there does not speak TLS.",
                "The server cannot be reached: what listens there does not speak TLS.",
            ]
        )


async def test_no_tls_to_a_port_with_it(tmp_path: Path) -> None:
    async with refusing(grpc.StatusCode.UNKNOWN, "", Authority(), tmp_path) as address:
        assert await said(address) == snapshot(
            [
                "The server at 127.0.0.1:PORT cannot be used: it speaks TLS only. Connect with --tls, or with --tls-ca FILE if the server has an authority of its own.",
                "The server cannot be reached: what listens there closes the connection: it does not speak gRPC, or has no room.",
                "The server cannot be reached: what listens there closes the connection: it does not speak gRPC, or has no room.",
            ]
        )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            snapshot(
                [
                    "The server, or a proxy before it, has no room for this call.",
                    "The server, or a proxy before it, has no room for this call.",
                    "The server, or a proxy before it, has no room for this call.",
                ]
            ),
        ),
        (
            grpc.StatusCode.UNAUTHENTICATED,
            snapshot(
                [
                    "The server does not accept this client's API key, or wants one.",
                    "The server does not accept this client's API key, or wants one.",
                    "The server does not accept this client's API key, or wants one.",
                ]
            ),
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            snapshot(
                [
                    "There is no moa server at 127.0.0.1:PORT: the connection could not be made, or was lost.",
                    "The server cannot be reached: the connection could not be made, or was lost.",
                    "The server cannot be reached: the connection could not be made, or was lost.",
                ]
            ),
        ),
        (
            grpc.StatusCode.CANCELLED,
            snapshot(
                [
                    "There is no moa server at 127.0.0.1:PORT: the call was ended on the way.",
                    "The server cannot be reached: the call was ended on the way.",
                    "The server cannot be reached: the call was ended on the way.",
                ]
            ),
        ),
        (
            grpc.StatusCode.INTERNAL,
            snapshot(
                [
                    "There is no moa server at 127.0.0.1:PORT: what answers there is no moa server, or does not work.",
                    "The server cannot be reached: what answers there is no moa server, or does not work.",
                    "The server cannot be reached: what answers there is no moa server, or does not work.",
                ]
            ),
        ),
    ],
)
@pytest.mark.parametrize("words", ["", "upstream: UNKNOWN: ipv4:10.0.0.1:80: nope"])
async def test_a_status_that_no_moa_server_has_sent(status: grpc.StatusCode, words: str, message: list[str]) -> None:
    async with refusing(status, words) as address:
        assert await said(address) == message


async def test_the_doctor_and_the_fleet_have_the_same_words() -> None:
    port = unused_port()
    lines = []
    for step in (check_connection(f"localhost:{port}", PLAIN), check_name("nowhere.invalid:1", PLAIN)):
        with pytest.raises(MoaError) as caught:
            await step
        lines.append(caught.value.message.replace(str(port), "PORT"))
    with pytest.raises(MoaError) as caught, connected(f"127.0.0.1:{port}"):
        pass
    assert [*lines, steady(caught.value.message)] == snapshot(
        [
            "Nothing at localhost:PORT takes connections: the connection was refused.",
            "nowhere.invalid is not known: the name is not known.",
            "Ray at 127.0.0.1:PORT does not answer: the connection was refused.",
        ]
    )


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


async def examined(address: str, security: Security) -> list[str]:
    """What the doctor says of the way to a server."""
    lines = []
    for step in (check_name(address, security), check_connection(address, security), check_tls(address, security)):
        try:
            lines.append((await step).message)
        except MoaError as error:
            lines.append(str(error))
    return [re.sub(r"[\d.]+ ms", "N ms", steady(line)) for line in lines]


async def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    async with listening(refuse) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        assert await said("gpu.example:1") == snapshot(
            [
                "The proxy 127.0.0.1:PORT, which https_proxy names, leads to no moa server at gpu.example:1: the proxy lets no connection through, or finds nothing there.",
                "The server cannot be reached: the proxy lets no connection through, or finds nothing there. It was tried by way of the proxy 127.0.0.1:PORT, which https_proxy names.",
                "The server cannot be reached: the proxy lets no connection through, or finds nothing there. It was tried by way of the proxy 127.0.0.1:PORT, which https_proxy names.",
            ]
        )
        assert await examined("gpu.example:1", PLAIN) == snapshot(
            [
                "gpu.example is looked up by the proxy 127.0.0.1:PORT, which https_proxy names",
                "The proxy 127.0.0.1:PORT, which https_proxy names, answers 403. Ask who runs it; or, if the server is reached without it, put gpu.example into no_proxy.",
                "not used: others on the way can read the conversation",
            ]
        )
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{unused_port()}")
    assert await said("gpu.example:1") == snapshot(
        [
            "The proxy 127.0.0.1:PORT, which https_proxy names, leads to no moa server at gpu.example:1: the connection was refused.",
            "The server cannot be reached: the connection was refused. It was tried by way of the proxy 127.0.0.1:PORT, which https_proxy names.",
            "The server cannot be reached: the connection was refused. It was tried by way of the proxy 127.0.0.1:PORT, which https_proxy names.",
        ]
    )
    assert await examined("gpu.example:1", PLAIN) == snapshot(
        [
            "gpu.example is looked up by the proxy 127.0.0.1:PORT, which https_proxy names",
            "The proxy 127.0.0.1:PORT, which https_proxy names, takes no connections: the connection was refused. Ask who runs it; or, if the server is reached without it, put gpu.example into no_proxy.",
            "not used: others on the way can read the conversation",
        ]
    )


async def test_a_server_behind_a_proxy_is_reached_and_one_of_this_machine_directly(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(partial(through, port=server.port)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        async with connect([Server("gpu.example:1", 5.0, 5.0, PLAIN)]) as fleet:
            assert (await fleet.describe()).identity.target_id == "tiny"
        assert await examined("gpu.example:1", PLAIN) == snapshot(
            [
                "gpu.example is looked up by the proxy 127.0.0.1:PORT, which http_proxy names",
                "open after N ms, by way of the proxy 127.0.0.1:PORT, which http_proxy names",
                "not used: others on the way can read the conversation",
            ]
        )
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    async with connect([Server(f"127.0.0.1:{server.port}", 5.0, 5.0)]) as fleet:
        assert (await fleet.describe()).identity.target_id == "tiny"


async def test_tls_is_examined_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    trusting = Security(tls=True, authorities=authority.write(tmp_path))
    async with refusing(grpc.StatusCode.UNIMPLEMENTED, "", authority, tmp_path) as address:
        port = int(address.rpartition(":")[2])
        async with listening(partial(through, port=port)) as proxy:
            monkeypatch.setenv("http_proxy", f"http://ada:key@{proxy}")
            assert await examined("192.0.2.7:1", trusting) == snapshot(
                [
                    "192.0.2.7 is an address",
                    "open after N ms, by way of the proxy 127.0.0.1:PORT, which http_proxy names",
                    "The server cannot be used: its certificate is for another name. Use the name or address that the certificate is for, or have a certificate made for this one.",
                ]
            )
