"""Connects to the user's servers, with their certificates and keys, and lists what each one serves now."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import AuthenticationError, MoaError
from moa_shared.programs.command_line import table

from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_client.servers.book import ServerBook, ServerEntry, at_addresses, find_servers, read_book
from moa_client.settings import ClientSettings

NEW_KEY_SECONDS = 2.0  # a server looks at its file of keys once a second
ASK_SECONDS = 2.0  # a server that takes longer is not one to talk to


@asynccontextmanager
async def connect_servers(settings: ClientSettings) -> AsyncIterator[tuple[ClientSettings, Fleet]]:
    """The settings with the addresses of the servers that are meant, and those servers."""
    entries = find_servers(settings, read_book())
    settings = at_addresses(settings, entries)
    async with connect([make_server(each, settings) for each in entries]) as fleet:
        yield settings, fleet


def make_server(entry: ServerEntry, settings: ClientSettings) -> Server:
    return Server(entry.address, settings.connect_seconds, settings.silence_seconds, security_of(entry), entry.name)


def security_of(entry: ServerEntry) -> Security:
    files = (entry.tls_ca, entry.tls_cert, entry.tls_key)
    return Security(entry.tls, *files, entry.key, entry.insecure, new_key=entry.new_key)


async def describe_server(
    entry: ServerEntry, settings: ClientSettings, seconds: float | None = None
) -> pb.DescribeResponse:
    """What a server serves whose key may have been made just now; `seconds`: to wait; None: as for connecting."""
    server = make_server(entry, settings)
    try:
        try:
            return await server.describe(seconds)
        except AuthenticationError:
            await asyncio.sleep(NEW_KEY_SECONDS)
            return await server.describe(seconds)
    finally:
        await server.close()


async def list_servers(book: ServerBook, settings: ClientSettings) -> str:
    """A line for each server, which are all asked at once, and below it why one does not answer."""
    asked = await asyncio.gather(*(_row(entry, book, settings) for entry in book.entries))
    heads = ("", "name", "address", "TLS", "key", "model", "round trip", "taken")
    first, *lines = table([heads, *(row for row, _ in asked)]).splitlines()
    told = [f"{line}\n   {error}" if error else line for line, (_, error) in zip(lines, asked, strict=True)]
    return "".join(f"{line}\n" for line in (first, *told))


async def _row(entry: ServerEntry, book: ServerBook, settings: ClientSettings) -> tuple[tuple[str, ...], str]:
    """Of a server, and why it does not answer; empty: it does."""
    name, key = entry.name, "none" if entry.key_file is None else "file"
    known = ("*" if name in book.in_use else "", name, entry.address, "yes" if entry.tls else "no", key)
    try:
        server = make_server(entry, settings)
        try:
            for _ in range(2):  # the first question also opens the connection
                await server.describe(ASK_SECONDS)
        finally:
            await server.close()
    except MoaError as error:
        return (*known, "no answer", "", ""), error.message
    served = server.served or pb.DescribeResponse()
    return (*known, served.identity.target_id, f"{server.rtt_ms:.1f} ms", f"{100 * served.load:.0f} %"), ""
