"""A conversation as one surface of this process has it open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import copy

from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.updates import Update
from moa_client.host.text_conversation import TextConversation
from moa_client.surface.open_conversation import ConversationFacts


class LocalConversation:
    """Implements `OpenConversation` in the process that runs the conversation.

    Args:
        conversation: stays open when this surface leaves, unless `leave` closes it.
        leave: called when the surface has left.
    """

    def __init__(
        self, conversation: TextConversation, leave: Callable[[TextConversation], Awaitable[None]] | None = None
    ) -> None:
        self.conversation = conversation
        self._leave = leave
        self._is_closed = False
        self._subscription = conversation.subscribe()
        self.answers: Sequence[AnswerText] = [copy(answer) for answer in conversation.answers]
        self.ask = conversation.ask
        self.continue_answer = conversation.continue_answer
        self.stop = conversation.stop
        self.abandon = conversation.abandon
        self.permit = conversation.permit
        self.go_offline = conversation.go_offline
        self.go_online = conversation.go_online
        self.write_alone = conversation.write_alone
        self.keep = conversation.keep
        self.rewind = conversation.rewind
        self.set_system = conversation.set_system
        self.set_title = conversation.set_title
        self.stats = conversation.stats

    @property
    def is_gone(self) -> bool:
        return False

    @property
    def facts(self) -> ConversationFacts:
        return self.conversation.facts

    @property
    def status(self) -> LinkStatus:
        return self.conversation.status

    def updates(self) -> AsyncIterator[Update]:
        return self._subscription.updates()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.conversation.unsubscribe(self._subscription)
        if self._leave is not None:
            await self._leave(self.conversation)
