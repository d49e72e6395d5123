"""Connects to the user's servers, with their certificates and keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import AuthenticationError

from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_client.servers.book import read_book
from moa_client.servers.entry import ServerEntry
from moa_client.servers.finding import at_addresses, find_servers
from moa_client.servers.joining import new_key
from moa_client.servers.keys import key_of
from moa_client.settings import ClientSettings

NEW_KEY_SECONDS = 2.0  # a server looks at its file of keys once a second


@asynccontextmanager
async def connect_servers(settings: ClientSettings) -> AsyncIterator[tuple[ClientSettings, Fleet]]:
    """The settings with the addresses of the servers that are meant, and those servers."""
    entries = find_servers(settings, read_book())
    settings = at_addresses(settings, entries)
    async with connect(make_servers(entries, settings)) as fleet:
        yield settings, fleet


def make_servers(entries: Sequence[ServerEntry], settings: ClientSettings) -> list[Server]:
    """The server of each entry."""
    return [
        Server(each.address, settings.connect_seconds, settings.silence_seconds, security_of(each), each.name)
        for each in entries
    ]


async def describe_server(entry: ServerEntry, settings: ClientSettings) -> pb.DescribeResponse:
    """What a server serves whose key may have been made just now."""
    [server] = make_servers([entry], settings)
    try:
        try:
            return await server.describe()
        except AuthenticationError:
            await asyncio.sleep(NEW_KEY_SECONDS)
            return await server.describe()
    finally:
        await server.close()


def security_of(entry: ServerEntry) -> Security:
    """The protection of the link to a server."""
    return Security(
        entry.tls, entry.tls_ca, entry.tls_cert, entry.tls_key, key_of(entry), entry.insecure, new_key=new_key(entry)
    )
