"""A conversation as surfaces use it, in this process or in the daemon: questions in, updates out.

Updates on their way to one surface are kept in order until it reads them, up to a bound: nothing is lost in between; a
surface that lags too far is cut off and must open the conversation again, which gives it everything as it is then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moa_shared.errors import OverloadedError

from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import Permission
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.tools.thinking import ReasoningMarks


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    """What a surface can say about a conversation.

    Args:
        identifier: names it in the history; empty: it is not kept.
        title: empty: none yet.
        target: the model's name; `server`: its address.
        online: whether its server is there; `absent`: why not, one sentence.
        level: of execution, such as int8; empty: no server has reported it.
        exact: whether the text does not depend on what is verified together.
        drafter: drafts for the server; empty: none that reads its memory.
        drafter_reason: why this one; `standalone`: the one that writes without a server.
        companion: an ordinary model that writes in its place without a server; empty: there is none.
        offer: one that there could be, as `moa-client companion set` takes it; empty: none is known.
        system: the system prompt; None: the model's own.
        sampling: how answers are chosen where their options say nothing, by name.
        thinking: how answers mark reasoning; None: they have none that is known.
    """

    identifier: str
    title: str
    target: str
    server: str
    online: bool
    absent: str = ""
    level: str = ""
    exact: bool = True
    drafter: str = ""
    drafter_reason: str = ""
    standalone: str = ""
    companion: str = ""
    offer: str = ""
    system: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    thinking: ReasoningMarks | None = None


class OpenConversation(Protocol):
    """A conversation that a surface has open. All methods but `updates` return at once; what they lead to is an update.

    `updates` has one reader at a time, which may stop reading and begin again: nothing is lost in between.
    """

    @property
    def facts(self) -> ConversationFacts: ...

    @property
    def answers(self) -> Sequence[AnswerText]: ...  # all its answers when it was opened, oldest first
    @property
    def status(self) -> LinkStatus: ...  # the state of the link and the newest answer's figures
    @property
    def is_gone(self) -> bool: ...  # whether the process that runs it has gone: it must be opened again
    def updates(self) -> AsyncIterator[Update]: ...  # what happens, from when the conversation was opened on
    # Asks; after the answers that are still running. instead_of: in the place of the answer of this number, and of
    # those after it; 0: after all.
    def ask(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None: ...
    # Continues the newest answer by at most so many tokens, 0: as the context allows; as if it had never ended.
    def continue_answer(self, max_tokens: int) -> None: ...
    def stop(self) -> None: ...  # ends the running answer where it is; the server is asked first
    def abandon(self) -> None: ...  # ends the running answer without waiting for the server
    # Says whether a call that waits may be run; nothing happens where none of this name waits.
    def permit(self, call: str, permission: Permission) -> None: ...
    def go_offline(self) -> None: ...

    def go_online(self) -> None: ...

    def write_standalone(
        self,
    ) -> None: ...  # continues the running answer without the server, however unlikely its text is
    def rewind(self, answers: int) -> None: ...  # keeps the first `answers` answers; 0: begins again
    def set_system(self, system: str | None) -> None: ...  # sets the system prompt, before the first question
    def set_title(self, title: str) -> None: ...

    # Figures of the newest answer and of what was written without a server, for a person.
    async def stats(self) -> str: ...
    async def close(self) -> None: ...


MOST_UNREAD = 10_000  # updates: an answer of as many tokens


class Subscription:
    """One surface's updates."""

    def __init__(self, most_unread: int = MOST_UNREAD) -> None:
        self._most_unread = most_unread
        self._unread: deque[Update] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._lags = False

    def push_update(self, update: Update) -> None:
        """Adds an update; one too many cuts the surface off."""
        if len(self._unread) >= self._most_unread:
            self._lags = True
            self._unread.clear()
        if not self._lags:
            self._unread.append(update)
        self._arrived.set()

    def close(self) -> None:
        """Nothing more will come; what is here may still be read."""
        self._is_closed = True
        self._arrived.set()

    async def updates(self) -> AsyncIterator[Update]:
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._lags:
                raise OverloadedError(
                    f"More than {self._most_unread} events were not read.", hint="Open the conversation again."
                )
            if self._is_closed:
                return
            self._arrived.clear()
            await self._arrived.wait()
