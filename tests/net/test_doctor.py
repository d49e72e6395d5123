"""The doctor before servers that are well, that are guarded, and that are not there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.doctor.examination import ServerExamination
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.verifier import Target
from moa_shared.programs.machine import Check, check_line, exit_code
from moa_shared.programs.progress import SilentProgress

from netsim import open_link
from tests.net.server_peer import make_host, serving
from tests.support.messages import steady
from tests.support.secure_server import secured

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
  ok    name         127.0.0.1 is an address
  ok    connection   open after N ms
  ok    TLS          not used: nothing leaves this machine
  ok    server       tiny at float32, moa V, protocol 4
  ok    round trip   N ms, the median of 7; 0 % of the server is taken
  ok    upload       N B/s (N B in N s)
  warn  drafter      not here yet: toy
                     The first chat fetches it from the server.
""")
        skipped = [each.name for each in checks if each.state == "skip"]
        assert skipped == ["download", "companion", "speed here", "expect"]
        assert len(waited) == len(checks)
        assert exit_code(checks) == 0


async def test_a_server_without_a_drafter(target: Target, tmp_path: Path) -> None:
    host = make_host(target, drafters=())
    host.services.served.identity.ClearField("drafter_fingerprint")
    async with serving(host) as running:
        checks, _ = await examine(f"127.0.0.1:{running.port}", tmp_path)
    assert shown(checks[-5:]) == snapshot("""\
  ok    upload       N B/s (N B in N s)
  warn  drafter      the server has none for its model
                     Its text comes a token at a time: nobody drafts, and nothing is written here while it is away. See docs/drafters.md, or try --drafter lookup.
""")
    assert exit_code(checks) == 0


async def test_a_guarded_server(target: Target, trusted: Path, tmp_path: Path) -> None:
    async with secured(make_host(target), key="abc") as port:
        address = f"localhost:{port}"
        checks, _ = await examine(address, tmp_path, Security(tls=True, authorities=trusted, key="abc"))
        assert [each.state for each in checks[:5]] == ["ok"] * 5
        assert re.sub(r"\d+ more", "N more", checks[2].message) == snapshot(
            "the certificate of localhost is valid for N more days"
        )
        checks, _ = await examine(address, tmp_path, Security(tls=True, authorities=trusted, key="wrong"))
        assert (shown(checks[3:]), exit_code(checks)) == snapshot(
            (
                """\
  fail  server       The server does not accept this client's API key, or wants one
                     Add the server again with its key: moa-client servers add NAME ADDRESS --tls --key-file FILE.
""",
                77,
            )
        )
        checks, _ = await examine(address, tmp_path, Security(tls=True))
        assert (shown(checks[2:]), exit_code(checks)) == snapshot(
            (
                """\
  fail  TLS          The server cannot be used: nobody whom this device trusts vouches for its certificate
                     Name the certificate of the authority that does with --tls-ca FILE.
""",
                69,
            )
        )


async def test_a_server_without_tls_where_there_should_be(target: Target, trusted: Path, tmp_path: Path) -> None:
    async with serving(make_host(target)) as running:
        checks, _ = await examine(f"127.0.0.1:{running.port}", tmp_path, Security(tls=True, authorities=trusted))
        assert checks[2].state == "fail"
        assert checks[2].hint == snapshot("Leave --tls out, or use the port on which the server speaks TLS.")


@pytest.mark.parametrize("address", ["nowhere.invalid:1", "127.0.0.1:1"])
async def test_a_server_that_is_not_there(tmp_path: Path, address: str) -> None:
    checks, _ = await examine(address, tmp_path)
    failed = [each.name for each in checks if each.state == "fail"]
    assert failed == ["name" if "nowhere" in address else "connection"]
    assert checks[-1] == Check("expect", "skip", f"not tried: {failed[0]} failed")
    assert exit_code(checks) == 69


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """The port of something that takes connections and says nothing."""
    taken: list[asyncio.StreamWriter] = []

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in taken:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await server.wait_closed()


async def test_what_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async with silent() as port:
        checks, _ = await examine(f"127.0.0.1:{port}", tmp_path)
        assert shown(checks[3:]) == snapshot("""\
  fail  server       There is no moa server at 127.0.0.1:PORT: nothing answered within N s
                     Check --server HOST:PORT, and that moa-server runs there.
""")
        checks, _ = await examine(f"127.0.0.1:{port}", tmp_path, Security(tls=True))
        assert shown(checks[2:]) == snapshot("""\
  fail  TLS          nothing came within N s
                     Check firewalls between this device and the server, and whether the network carries anything.
""")


async def test_a_link_that_is_cut_after_the_first_answer(target: Target, tmp_path: Path) -> None:
    async with (
        serving(make_host(target)) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as network,
    ):
        settings = ClientSettings(server=network.target, connect_seconds=0.5, cache_dir=tmp_path)
        link = Server(network.target, settings.connect_seconds, 1.0)
        try:
            checks = []
            async for check in ServerExamination(settings, link, SilentProgress(), lambda text: None).run():
                checks.append(check)
                if check.name == "server":
                    await network.cut("both")
        finally:
            await link.close()
        assert [each.name for each in checks if each.state == "fail"] == ["round trip"]
        assert exit_code(checks) == 69
