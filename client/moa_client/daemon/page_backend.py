"""The daemon as the page sees it: what is open and what is kept, in one list."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

from moa_shared.errors import NotFoundError

from moa_client.daemon.hub import Hub
from moa_client.history.exports import as_json, markdown
from moa_client.history.store import HistoryStore
from moa_client.host.frame_tap import Crossing
from moa_client.page.backend import ExportForm, Kept
from moa_client.surface.open_conversation import OpenConversation

MOST_FOUND = 100  # answers of a search


class DaemonPage:
    """Implements `PageBackend`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.status = hub.status
        self.set_offline = hub.set_offline

    async def open(self, identifier: str | None, system: str | None, single: bool) -> OpenConversation:
        """Opens a conversation."""
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
        """Deletes a conversation."""
        store = self._kept(identifier)
        store.load(identifier)
        await (await self._hub.library()).delete(identifier)

    async def export(self, identifier: str, form: ExportForm) -> str:
        """A conversation as a text."""
        stored = self._kept(identifier).load(identifier)
        return markdown(stored) if form == "markdown" else json.dumps(as_json(stored), indent=2) + "\n"

    async def timeline(self) -> AsyncIterator[Crossing]:
        """What crosses the link from now on."""
        library = await self._hub.library()
        async for crossing in library.host.frame_tap.watch():
            yield crossing

    def _kept(self, identifier: str) -> HistoryStore:
        store = self._hub.store()
        if store is None:
            raise NotFoundError(f"There is no conversation {identifier}.", hint="Conversations are not kept here.")
        return store
