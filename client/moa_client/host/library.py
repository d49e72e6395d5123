"""The conversations that surfaces can open: those in the history, each open once however many surfaces watch it.

State: the open ones by identifier, and those that no surface watches with the time since when. Invariant: a
conversation is closed when no surface watches it, nothing of it is under way, and no server has anything left to decide
about it.
"""

import asyncio
import logging
import time
from functools import partial

from moa_shared.errors import ConflictError, DiskFullError, HistoryError, MoaError

from moa_client.conversation.events import NotKept
from moa_client.device.loading import trim_heap
from moa_client.history.reading import StoredConversation
from moa_client.history.recorder import HistoryRecorder
from moa_client.history.store import HistoryStore
from moa_client.host.catalog import Catalog
from moa_client.host.host import Host
from moa_client.host.surface_session import Watch
from moa_client.host.text_conversation import TextConversation, origin_of
from moa_client.logs import told
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.tool import ToolBox

LOOK_SECONDS = 15.0  # between looks for unused conversations
log = logging.getLogger(__name__)


class Library:
    """Opens conversations and closes unused ones.

    Args:
        store: the history; None: nothing is kept.
        unwatched_seconds: how long an unwatched conversation stays open, for a user who comes back.
        box: the tools that conversations offer; None: none.
    """

    def __init__(
        self, host: Host, store: HistoryStore | None, unwatched_seconds: float = 0.0, box: ToolBox | None = None
    ) -> None:
        self.host = host
        self.catalog = Catalog(host)
        self.open_conversations: dict[str, TextConversation] = {}
        self._store = store
        self._unwatched_seconds = unwatched_seconds
        self._box = box
        self._unwatched: dict[str, float] = {}  # since when
        self._looking = asyncio.create_task(self._look())
        host.on_adopted = self._on_adopted

    async def open(
        self, identifier: str | None, system: str | None, *, is_read: bool = True, single: bool = False
    ) -> Watch:
        """Opens a conversation for a surface: one that is open or in the history, or a new one with a system prompt.

        `is_read`: by a person, as it comes; `single`: a new one is for one question, and not kept.
        """
        not_kept: MoaError | None = None
        if self._store is not None and identifier is not None:
            if identifier not in self.open_conversations:
                stored = self._store.load(identifier)
                key, host = (stored.origin.target, stored.origin.tokenizer), self._home_of(stored)
                host = host or await self.catalog.host_with(key)
                if identifier not in self.open_conversations:  # nor since then
                    await self._open_kept(self._store, stored, host, is_read=is_read)
            return self._watch(identifier)
        if self._store is not None and not single:
            try:
                identifier = self._store.create(origin_of(self.host.device, self.host.link.shown.address, system))
            except (DiskFullError, HistoryError) as error:
                not_kept = error
            else:
                made = self._make(self.host, self._store, identifier, system, is_read=is_read)
                self.open_conversations[identifier] = made
                return self._watch(identifier)
        unkept = self.host.converse(is_read=is_read, system=system, lasts=not single, box=self._box)
        unkept.menu = self.catalog.choose
        watch = Watch(unkept, self.catalog.leave)
        if not_kept is not None:
            unkept.publisher.publish(NotKept(not_kept))
        return watch

    async def reopen_unverified(self) -> None:
        """Opens the conversations of before in which a server has something left to decide, so that it does."""
        if (store := self._store) is None:
            return
        for name in [each.identifier for each in store.list(unverified_only=True)]:
            try:
                stored = store.load(name)
                await self._open_kept(store, stored, self._home_of(stored), is_read=False)
                self._unwatched[name] = time.monotonic()
            except ConflictError:  # of another model, or another program has it open
                continue
            except BaseException as error:  # noqa: BLE001 (the others, and new ones, can be opened)
                log.warning("%s is left as it is: %s", name, told(error))

    async def delete(self, identifier: str) -> None:
        if self._store is None:
            return
        if (conversation := self.open_conversations.get(identifier)) is not None:
            if conversation.publisher.subscriptions:
                raise ConflictError("The conversation is open.", hint="Close it first, wherever it is shown.")
            await self._close(identifier)
        self._store.delete([identifier])

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        for identifier in list(self.open_conversations):
            await self._close(identifier)
        await self.catalog.close()
        if self._store is not None:
            self._store.close()

    async def _open_kept(
        self, store: HistoryStore, stored: StoredConversation, host: Host | None, *, is_read: bool
    ) -> None:
        """`host`: of its model; None: no server has that."""
        if host is None:
            served = self.host.device.target.files.target_id
            raise ConflictError(
                f"The conversation is with {stored.origin.model}; this server has {served}.{self.catalog.silent}",
                hint=f"Read it with `moa-client history show {stored.identifier}`; it can continue when its model is "
                "served again.",
            )
        stored = store.reopen(stored.identifier)
        conversation = self._make(host, store, stored.identifier, stored.origin.system, stored, is_read=is_read)
        try:
            conversation.resume(stored)
            self._set_origin(host, store, stored)
        except BaseException:
            await host.leave(conversation)
            store.release(stored.identifier)
            raise
        self.open_conversations[stored.identifier] = conversation

    def _make(
        self,
        host: Host,
        store: HistoryStore,
        identifier: str,
        system: str | None,
        stored: StoredConversation | None = None,
        *,
        is_read: bool,
    ) -> TextConversation:
        title = stored.title if stored is not None else ""
        made = host.converse(
            is_read=is_read,
            facts=ConversationFacts(identifier, title),
            system=system,
            make_journal=lambda tokens: HistoryRecorder(store, identifier, tokens, stored),
            box=self._box,
        )
        made.menu = self.catalog.choose
        return made

    def _watch(self, identifier: str) -> Watch:
        self._unwatched.pop(identifier, None)
        return Watch(self.open_conversations[identifier], partial(self._left, identifier))

    async def _left(self, identifier: str, conversation: TextConversation) -> None:
        if not conversation.publisher.subscriptions and self.open_conversations.get(identifier) is conversation:
            self._unwatched[identifier] = time.monotonic()
            await self._close_unneeded()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._close_unneeded()
                await self.catalog.close_idle()
            except BaseException as error:  # noqa: BLE001 (it is looked at again)
                log.warning("a conversation could not be closed: %s", told(error))

    async def _close_unneeded(self) -> None:
        now = time.monotonic()
        for identifier, since in list(self._unwatched.items()):
            conversation = self.open_conversations[identifier]
            is_used = conversation.publisher.subscriptions or conversation.task.is_answering
            if not (is_used or conversation.engine.answers.unsettled) and now - since >= self._unwatched_seconds:
                await self._close(identifier)

    async def _close(self, identifier: str) -> None:
        self._unwatched.pop(identifier, None)
        conversation = self.open_conversations.pop(identifier)
        await self.catalog.leave(conversation)
        if self._store is not None:
            if not conversation.publisher.answers:
                self._store.delete([identifier])  # nothing was ever asked
            self._store.release(identifier)
        trim_heap()

    def _on_adopted(self) -> None:
        if (store := self._store) is not None:
            for identifier, conversation in self.open_conversations.items():
                if conversation in self.host.conversations:
                    self._set_origin(self.host, store, store.load(identifier))

    def _set_origin(self, host: Host, store: HistoryStore, stored: StoredConversation) -> None:
        if stored.origin.target != host.device.identity.target_fingerprint:
            store.set_origin(stored.identifier, origin_of(host.device, host.link.shown.address, stored.origin.system))

    def _home_of(self, stored: StoredConversation) -> Host | None:
        """The host at home if its target has begun the conversation, or the companion, whose tokens are its own."""
        device, origin = self.host.device, stored.origin
        identity, companion = device.identity, device.companion
        is_own = (origin.target, origin.tokenizer) == (identity.target_fingerprint, identity.tokenizer_hash)
        is_own |= companion is not None and origin.target == bytes.fromhex(companion.fingerprint)
        return self.host if is_own else None
