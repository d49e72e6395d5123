"""Which servers are meant: those named with --server, else those in use, else one on this machine. Pure."""

from __future__ import annotations

from dataclasses import replace

from moa_client.servers.book import ServerBook
from moa_client.servers.entry import ServerEntry, make_entry
from moa_client.settings import LOCAL_SERVER, ClientSettings


def find_servers(settings: ClientSettings, book: ServerBook) -> tuple[ServerEntry, ...]:
    """The servers that are meant, best liked first; at least one.

    Args:
        settings: name them by HOST:PORT or by names from the list, separated by commas, or not: those in use; and say
            how those are protected that are not listed.
    """
    if not settings.server:
        return tuple(book.find(name) for name in book.in_use) or (_unlisted(LOCAL_SERVER, settings),)
    found = dict.fromkeys(_find(part.strip(), settings, book) for part in settings.server.split(","))
    return tuple(found)


def at_addresses(settings: ClientSettings, servers: tuple[ServerEntry, ...]) -> ClientSettings:
    """The same settings, which name the servers by their addresses: what is kept about a server is kept by that."""
    return replace(settings, server=",".join(server.address for server in servers))


def _find(part: str, settings: ClientSettings, book: ServerBook) -> ServerEntry:
    """A server by its name or its address; a listed one keeps its protection, however it is named."""
    if ":" not in part:
        return book.find(part)
    return next((entry for entry in book.entries if entry.address == part), _unlisted(part, settings))


def _unlisted(address: str, settings: ClientSettings) -> ServerEntry:
    return make_entry(
        name="",
        address=address,
        tls=settings.tls,
        tls_ca=settings.tls_ca,
        insecure=settings.insecure,
    )
