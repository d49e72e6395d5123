"""The conversations that surfaces can open: those in the history, each open once however many surfaces watch it.

State: the open ones by identifier, and those that no surface watches with the time since when. Invariant: a
conversation is closed when no surface watches it, nothing of it is under way, and no server has anything left to decide
about it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from moa_shared.errors import ConflictError, DiskFullError, HistoryError, InternalError

from moa_client.conversation.events import NotKept
from moa_client.device.refitting import trim_heap
from moa_client.failures import told
from moa_client.history.reading import ConversationOrigin, StoredConversation
from moa_client.history.recorder import HistoryRecorder
from moa_client.history.store import HistoryStore
from moa_client.host.host import Host
from moa_client.host.surface_session import Watch
from moa_client.host.text_conversation import TextConversation
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
        self.store = store
        self._unwatched_seconds = unwatched_seconds
        self._box = box
        self._open: dict[str, TextConversation] = {}
        self._unwatched: dict[str, float] = {}  # since when
        self._leaving: list[asyncio.Task[None]] = []
        self._looking = asyncio.create_task(self._look())
        host.on_adopted = self._on_adopted

    @property
    def open_conversations(self) -> Mapping[str, TextConversation]:
        return self._open

    def open(self, identifier: str | None, system: str | None, *, is_read: bool = True, single: bool = False) -> Watch:
        """Opens a conversation for a surface.

        Args:
            identifier: of one that is open or in the history; None: a new one.
            system: the system prompt of a new one; None: the model's own.
            is_read: by a person, as it comes.
            single: a new one for one question, which is not kept.
        """
        if self.store is None or (single and identifier is None):
            return Watch(
                self.host.converse(is_read=is_read, system=system, lasts=not single, box=self._box), self.host.leave
            )
        if identifier is not None and identifier in self._open:
            return self._local(identifier)
        if identifier is None:
            try:
                identifier = self.store.create(self._origin(system))
            except (DiskFullError, HistoryError) as error:
                unkept = self.host.converse(is_read=is_read, system=system, box=self._box)
                local = Watch(unkept, self.host.leave)
                local.conversation.publisher.publish(NotKept(error))
                return local
            self._open[identifier] = self._make(identifier, system, is_read=is_read)
        else:
            self._check_model(self.store.load(identifier))
            self._begin_again(self.store.reopen(identifier), is_read=is_read)
        return self._local(identifier)

    def reopen_unverified(self) -> None:
        """Opens the conversations of before in which a server has something left to decide, so that it does."""
        if self.store is None:
            return
        for summary in self.store.list(unverified_only=True):
            if summary.identifier in self._open or not self._is_with_this_model(self.store.load(summary.identifier)):
                continue
            try:
                self._begin_again(self.store.reopen(summary.identifier), is_read=False)
                self._unwatched[summary.identifier] = time.monotonic()
            except ConflictError:  # another program has it open
                continue
            except BaseException as error:  # noqa: BLE001 (the others, and new ones, can be opened)
                log.warning("%s is left as it is: %s", summary.identifier, told(error))

    async def delete(self, identifier: str) -> None:
        if self.store is None:
            return
        if (conversation := self._open.get(identifier)) is not None:
            if conversation.publisher.subscriptions:
                raise ConflictError("The conversation is open.", hint="Close it first, wherever it is shown.")
            await self._close(identifier)
        self.store.delete([identifier])

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, *self._leaving, return_exceptions=True)
        for identifier in list(self._open):
            await self._close(identifier)
        if self.store is not None:
            self.store.close()

    def _begin_again(self, stored: StoredConversation, *, is_read: bool) -> None:
        conversation = self._make(stored.identifier, stored.origin.system, stored, is_read=is_read)
        try:
            conversation.resume(stored)
            self._set_origin(stored)
        except BaseException:
            self._leaving.append(asyncio.create_task(self._abandon(stored.identifier, conversation)))
            raise
        self._open[stored.identifier] = conversation

    async def _abandon(self, identifier: str, conversation: TextConversation) -> None:
        await self.host.leave(conversation)
        if self.store is not None:
            self.store.release(identifier)

    def _make(
        self, identifier: str, system: str | None, stored: StoredConversation | None = None, *, is_read: bool
    ) -> TextConversation:
        store = self.store
        if store is None:
            raise InternalError("A conversation was to be kept where nothing is.")
        title = stored.title if stored is not None else ""
        return self.host.converse(
            is_read=is_read,
            facts=ConversationFacts(identifier, title, "", "", online=False),
            system=system,
            make_journal=lambda tokens: HistoryRecorder(store, identifier, tokens, stored),
            box=self._box,
        )

    def _local(self, identifier: str) -> Watch:
        self._unwatched.pop(identifier, None)
        return Watch(self._open[identifier], partial(self._left, identifier))

    async def _left(self, identifier: str, conversation: TextConversation) -> None:
        if not conversation.publisher.subscriptions and self._open.get(identifier) is conversation:
            self._unwatched[identifier] = time.monotonic()
            await self._close_unneeded()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._leaving = [task for task in self._leaving if not task.done()]
            try:
                await self._close_unneeded()
            except BaseException as error:  # noqa: BLE001 (it is looked at again)
                log.warning("a conversation could not be closed: %s", told(error))

    async def _close_unneeded(self) -> None:
        now = time.monotonic()
        for identifier, since in list(self._unwatched.items()):
            conversation = self._open[identifier]
            is_used = conversation.publisher.subscriptions or conversation.task.is_answering
            if not (is_used or conversation.engine.unsettled) and now - since >= self._unwatched_seconds:
                await self._close(identifier)

    async def _close(self, identifier: str) -> None:
        self._unwatched.pop(identifier, None)
        conversation = self._open.pop(identifier)
        await self.host.leave(conversation)
        if self.store is not None:
            if not conversation.publisher.answers:
                self.store.delete([identifier])  # nothing was ever asked
            self.store.release(identifier)
        trim_heap()

    def _origin(self, system: str | None) -> ConversationOrigin:
        device = self.host.device
        identity = device.identity
        return ConversationOrigin(
            device.files.target_id,
            identity.target_fingerprint,
            identity.tokenizer_hash,
            device.level,
            self.host.link.shown.address,
            system,
        )

    def _on_adopted(self) -> None:
        if self.store is not None:
            for identifier in self._open:
                self._set_origin(self.store.load(identifier))

    def _set_origin(self, stored: StoredConversation) -> None:
        if self.store is not None and stored.origin.target != self.host.device.identity.target_fingerprint:
            self.store.set_origin(stored.identifier, self._origin(stored.origin.system))

    def _is_with_this_model(self, stored: StoredConversation) -> bool:
        """Whether the target, or the companion, whose tokens are the target's, has begun the conversation."""
        device, origin = self.host.device, stored.origin
        if device.companion is not None and origin.target == bytes.fromhex(device.companion.fingerprint):
            return True
        identity = device.identity
        return (origin.target, origin.tokenizer) == (identity.target_fingerprint, identity.tokenizer_hash)

    def _check_model(self, stored: StoredConversation) -> None:
        if not self._is_with_this_model(stored):
            raise ConflictError(
                f"The conversation is with {stored.origin.model}; this server has {self.host.device.files.target_id}.",
                hint=f"Read it with `moa-client history show {stored.identifier}`; it can continue when its model is "
                "served again.",
            )
