"""Connects to the user's servers, with their certificates and keys, and lists what each one serves now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

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


async def describe_server(entry: ServerEntry, settings: ClientSettings) -> pb.DescribeResponse:
    """What a server serves whose key may have been made just now."""
    server = make_server(entry, settings)
    try:
        try:
            return await server.describe()
        except AuthenticationError:
            await asyncio.sleep(NEW_KEY_SECONDS)
            return await server.describe()
    finally:
        await server.close()


async def ask_servers(book: ServerBook, settings: ClientSettings) -> list[dict[str, Any]]:
    """Asks all servers at once what they serve; of each what programs are told."""
    return list(await asyncio.gather(*(_ask(entry, book, settings) for entry in book.entries)))


async def _ask(entry: ServerEntry, book: ServerBook, settings: ClientSettings) -> dict[str, Any]:
    known = {"name": entry.name, "address": entry.address, "in_use": entry.name in book.in_use, "tls": entry.tls}
    known |= {"key": "file" if entry.key_file is not None else None}
    told = dict.fromkeys(("model", "rtt_ms", "load", "error"))
    try:
        server = make_server(entry, settings)
        try:
            for _ in range(2):  # the first question also opens the connection
                await server.describe(ASK_SECONDS)
        finally:
            await server.close()
    except MoaError as error:
        return known | told | {"error": error.message}
    if (served := server.served) is not None:
        told |= {"model": served.identity.target_id, "load": round(served.load, 3)}
    return known | told | {"rtt_ms": round(server.rtt_ms, 2) if server.rtt_ms is not None else None}


def list_table(asked: Sequence[dict[str, Any]]) -> str:
    """A line for each server, and below it why it does not answer."""
    heads = ("", "name", "address", "TLS", "key", "model", "round trip", "taken")
    first, *lines = table([heads, *map(_row, asked)]).splitlines()
    told = [f"{line}\n   {each['error']}" if each["error"] else line for line, each in zip(lines, asked, strict=True)]
    return "".join(f"{line}\n" for line in (first, *told))


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    marks = "*" if each["in_use"] else "", each["name"], each["address"], "yes" if each["tls"] else "no"
    rtt = f"{each['rtt_ms']:.1f} ms" if each["rtt_ms"] is not None else ""
    load = f"{100 * each['load']:.0f} %" if each["load"] is not None else ""
    return (*marks, each["key"] or "none", each["model"] or "no answer", rtt, load)
