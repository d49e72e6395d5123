"""The proxy backend with real sockets: what it does to bytes, connections and refusals. Times are lower bounds only."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from netsim.errors import NetsimError

from netsim import open_link
from tests.support.messages import says


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes; ends as the client ends."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[str]:
    """A server on loopback that echoes; gives its address."""
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Sends and waits for the echo; milliseconds."""
    start = asyncio.get_running_loop().time()
    writer.write(bytes(100))
    await reader.readexactly(100)
    return (asyncio.get_running_loop().time() - start) * 1e3


async def end_of(reader: asyncio.StreamReader) -> str:
    try:
        return "end" if await reader.read() == b"" else "data"
    except ConnectionResetError:
        return "reset"


async def test_bytes_come_through_a_bad_link_whole(tmp_path: Path) -> None:
    content = Random(1).randbytes(400_000)
    async with serving() as upstream, open_link("bad-wifi", upstream=upstream, seed=3, out=tmp_path / "out") as link:
        await link.set(rate_mbps=50)
        reader, writer = await asyncio.open_connection(*link.address)
        writer.write(content)
        writer.write_eof()
        assert hashlib.sha256(await reader.read()).digest() == hashlib.sha256(content).digest()
        writer.close()
    summary = link.summary()
    assert summary["directions"]["up"]["dropped_loss"] > 0
    assert summary["approximate"] is True
    assert summary["seed"] == 3
    kinds = [event["kind"] for event in link.events()]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert {"open", "close", "set", "request"} <= set(kinds)


async def test_a_connection_asked_for_in_an_outage_waits() -> None:
    async with serving() as upstream, open_link("perfect", upstream=upstream) as link:
        await link.cut(seconds=0.8)
        reader, writer = await asyncio.open_connection(*link.address)
        assert await ask(reader, writer) >= 300.0  # the SYN is sent again after a second
        await link.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*link.address)
        writer.close()


async def test_an_upstream_that_refuses_is_passed_on_and_comes_back() -> None:
    async with serving() as upstream:
        port = int(upstream.rpartition(":")[2])
    async with open_link("perfect", upstream=upstream) as link:
        try:
            reader, writer = await asyncio.open_connection(*link.address)
        except ConnectionResetError:
            pass  # without delay the reset can come before connecting returns
        else:
            assert await end_of(reader) == "reset"
            writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*link.address)
        async with serving(port=port):
            while True:
                try:
                    reader, writer = await asyncio.open_connection(*link.address)
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)  # the proxy looks for the server every 50 ms
            await ask(reader, writer)
            writer.close()


async def test_a_timeline_is_played_and_logged() -> None:
    events = ["1.5:reset", "1.6:change:wired:0.1"]
    async with serving() as upstream, open_link("perfect", upstream=upstream, events=events) as link:
        reader, writer = await asyncio.open_connection(*link.address)
        await ask(reader, writer)
        assert await end_of(reader) == "reset"
        writer.close()
        while (await link.status())["directions"]["up"]["rate_mbps"] != 50.0:  # noqa: ASYNC110 - another process' state
            await asyncio.sleep(0.02)
        out = link.out
        logged = [event for event in link.events() if event["kind"] == "reset"]
        assert out.exists()
    assert [event["connections"] for event in logged] == [1]
    assert logged[0]["t_s"] >= 1.5


async def test_what_netsim_says_reaches_the_caller() -> None:
    with says(NetsimError, "The link did not open: There is no profile 'nosuch'.\n  There are 4g, 4g-rtt,"):
        async with open_link("nosuch", upstream=":1"):
            pass
