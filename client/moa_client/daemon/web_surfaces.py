"""Serves the page and the endpoint inside the daemon; the page sees what is open and what is kept in one list."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.addresses import is_loopback

from moa_client.daemon.hub import Hub
from moa_client.endpoint.ask import model_source
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.routes import Health, endpoint_routes, health_route
from moa_client.history.exports import as_json, markdown
from moa_client.history.store import HistoryStore
from moa_client.host.host import Crossing
from moa_client.host.surface_session import Watch
from moa_client.page.routes import ExportForm, Kept, page_routes
from moa_client.settings import ClientSettings
from moa_client.web.access import Access, read_key
from moa_client.web.app import make_app
from moa_client.web.connection import tells_users
from moa_client.web.runner import bind, serve

MOST_FOUND = 100  # answers of a search


class DaemonPage:
    """Implements `PageBackend`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.status = hub.status
        self.set_offline = hub.set_offline

    async def open(self, identifier: str | None, system: str | None, single: bool) -> Watch:
        return await self._hub.open(identifier, system, single)

    async def conversations(self, search: str) -> Sequence[Kept]:
        """Those that are kept, the newest first; with words to search for, those in which they are."""
        store = self._hub.store()
        if store is None:
            return []
        kept = [
            Kept(each.identifier, each.title, each.updated, each.model, each.answers, each.unverified)
            for each in store.list()
        ]
        if not search.strip():
            return kept
        found = {hit.identifier for hit in store.search(search, MOST_FOUND)}
        wanted = search.casefold()
        return [each for each in kept if each.id in found or wanted in each.title.casefold()]

    async def delete(self, identifier: str) -> None:
        store = self._kept(identifier)
        store.load(identifier)
        await (await self._hub.library()).delete(identifier)

    async def export(self, identifier: str, form: ExportForm) -> str:
        stored = self._kept(identifier).load(identifier)
        return markdown(stored) if form == "markdown" else json.dumps(as_json(stored), indent=2) + "\n"

    async def timeline(self) -> AsyncIterator[Crossing]:
        library = await self._hub.library()
        async for crossing in library.host.frame_tap.watch():
            yield crossing

    def _kept(self, identifier: str) -> HistoryStore:
        store = self._hub.store()
        if store is None:
            raise NotFoundError(f"There is no conversation {identifier}.", hint="Conversations are not kept here.")
        return store


log = logging.getLogger(__name__)


async def serve_web_surfaces(settings: ClientSettings, hub: Hub, stack: AsyncExitStack) -> None:
    """Listens, unless the settings say not to; the hub's status says where, or why not.

    A port that another program has does not keep the daemon from serving chats.
    """
    if not settings.endpoint:
        return
    key = read_key(settings.endpoint_key_file)
    host = settings.endpoint_host
    if not key and not is_loopback(host):
        raise ConfigError(
            f"Everybody who reaches {host} could use the endpoint.",
            hint="Give --endpoint-key-file, or leave --endpoint-host at 127.0.0.1.",
        )
    is_made_here = not key and not tells_users()
    if is_made_here:  # other users of the device would not be told apart: only this one can read the daemon's status
        key = secrets.token_urlsafe()
    try:
        listener = bind(host, settings.endpoint_port)
    except ConfigError as error:
        hub.web_error = str(error)
        log.warning("no page and no endpoint: %s", error)
        return
    closing = asyncio.Event()
    limits = EndpointSettings(settings.settle_seconds)
    routes = [
        *endpoint_routes(model_source(hub.host), limits, closing, hub.store),
        health_route(Health(hub.status, hub.link.check)),
        *page_routes(DaemonPage(hub)),
    ]
    access = Access(host, listener.getsockname()[1], settings.allowed_origins, key)
    server = await serve(make_app(routes, access), listener, closing, access)
    stack.push_async_callback(server.close)
    hub.url = f"{server.url}/#key={key}" if is_made_here else server.url
    log.warning("page and endpoint at %s", server.url)
