"""Connects to the user's servers, with their certificates and keys, and lists what each one serves now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import AuthenticationError, MoaError
from moa_shared.programs.command_line import table

from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_client.servers.book import ServerBook, ServerEntry, at_addresses, find_servers, read_book
from moa_client.servers.keys import key_of, new_key
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
    return Security(
        entry.tls, entry.tls_ca, entry.tls_cert, entry.tls_key, key_of(entry), entry.insecure, new_key=new_key(entry)
    )


ASK_SECONDS = 2.0  # a server that takes longer is not one to talk to
HEADS = ("", "name", "address", "TLS", "key", "model", "round trip", "taken")


@dataclass(frozen=True, slots=True)
class ListedServer:
    """What a server has said now. `model`: empty: it has not answered."""

    entry: ServerEntry
    model: str = ""
    rtt_ms: float | None = None
    load: float | None = None
    error: str = ""


async def ask_servers(entries: Sequence[ServerEntry], settings: ClientSettings) -> list[ListedServer]:
    """Asks all servers at once what they serve."""
    return list(await asyncio.gather(*(_ask(entry, settings) for entry in entries)))


async def _ask(entry: ServerEntry, settings: ClientSettings) -> ListedServer:
    try:
        [server] = make_servers([entry], settings)
    except MoaError as error:
        return ListedServer(entry, error=error.message)
    try:
        await server.measure(ASK_SECONDS)
    except MoaError as error:
        return ListedServer(entry, error=error.message)
    finally:
        await server.close()
    served = server.served
    return ListedServer(
        entry,
        served.identity.target_id if served is not None else "",
        server.rtt_ms,
        served.load if served is not None else None,
    )


def list_table(asked: Sequence[ListedServer], book: ServerBook) -> str:
    """A line for each server, and below it why it does not answer."""
    lines = table([HEADS, *(_row(each, book) for each in asked)]).splitlines()
    shown = [lines[0]]
    for line, each in zip(lines[1:], asked, strict=True):
        shown += [line, f"   {each.error}"] if each.error else [line]
    return "".join(f"{line}\n" for line in shown)


def _row(each: ListedServer, book: ServerBook) -> tuple[str, ...]:
    entry = each.entry
    return (
        "*" if entry.name in book.in_use else "",
        entry.name,
        entry.address,
        "yes" if entry.tls else "no",
        entry.key_words,
        each.model or "no answer",
        f"{each.rtt_ms:.1f} ms" if each.rtt_ms is not None else "",
        f"{100 * each.load:.0f} %" if each.load is not None else "",
    )


def list_json(asked: Sequence[ListedServer], book: ServerBook) -> str:
    rows = [
        {
            "name": each.entry.name,
            "address": each.entry.address,
            "in_use": each.entry.name in book.in_use,
            "tls": each.entry.tls,
            "key": "keyring" if each.entry.key_keyring else "file" if each.entry.key_file is not None else None,
            "model": each.model or None,
            "rtt_ms": round(each.rtt_ms, 2) if each.rtt_ms is not None else None,
            "load": round(each.load, 3) if each.load is not None else None,
            "error": each.error or None,
        }
        for each in asked
    ]
    return json.dumps(rows, indent=2) + "\n"
