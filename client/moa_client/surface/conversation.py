"""A conversation as a chat has it open: messages to the process that runs it, this one or the daemon, and updates back.

Updates on their way to one surface are kept in order until it reads them, up to a bound: nothing is lost in between; a
surface that lags too far is cut off and must open the conversation again, which gives it everything as it is then.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

from moa_shared.errors import MoaError, OverloadedError, UnavailableError
from moa_shared.programs.run_loop import turns

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.logs import told
from moa_client.surface.messages import (
    OPTIONS,
    ConversationFacts,
    Fields,
    encode_line,
    error_of,
    made_of,
    update_of,
)

MOST_UNREAD = 10_000  # updates: an answer of as many tokens
MOST_MESSAGE_BYTES = 1 << 28  # from the daemon, which is trusted: a long conversation in one `opened`
GONE = UnavailableError("The daemon has ended.", hint="Ask again: it is started again, and the conversation is kept.")


class Subscription:
    def __init__(self, most_unread: int = MOST_UNREAD) -> None:
        self._most_unread = most_unread
        self._unread: asyncio.Queue[Update | None] = asyncio.Queue()  # None: there is no more
        self._lags = False

    def push_update(self, update: Update) -> None:
        """Adds an update; one too many cuts the surface off."""
        if not self._lags:
            self._lags = self._unread.qsize() >= self._most_unread
            self._unread.put_nowait(None if self._lags else update)

    def close(self) -> None:
        """Nothing more will come; what is here may still be read."""
        self._unread.put_nowait(None)

    async def updates(self) -> AsyncIterator[Update]:
        """May be read by one reader after another: nothing is lost in between."""
        while (update := await self._unread.get()) is not None:
            yield update
        self.close()  # for another reader
        if self._lags:
            raise OverloadedError(
                f"More than {self._most_unread} events were not read.", hint="Open the conversation again."
            )


class OpenConversation:
    """A conversation that a chat has open.

    What is asked of it returns at once, and what it leads to is an update. A process that goes away ends the running
    answer with an error; the conversation is opened again by its identifier with the next question.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opened: Mapping[str, Any]) -> None:
        self.model = ""  # that answers, as lists name it, if they were asked for or it was chosen
        self.is_gone = False  # the process that runs it: it must be opened again
        self.status = made_of(LinkStatus, opened["status"])  # of the link, and the newest answer's figures
        self.answers: Sequence[AnswerText] = [made_of(AnswerText, answer) for answer in opened["answers"]]
        self._facts = made_of(ConversationFacts, opened)
        self._reader, self._writer = reader, writer

    @property
    def facts(self) -> ConversationFacts:
        online = self.status.state is not events.LinkState.OFFLINE
        return replace(self._facts, server=self.status.server, online=online)

    async def updates(self) -> AsyncGenerator[Update, None]:
        """May be read by one reader after another: nothing is lost in between."""
        while not (self.is_gone or self._writer.is_closing()):
            yield await self._next()

    def _send(self, **message: Any) -> None:
        if self.is_gone or self._reader.at_eof():
            raise GONE
        self._writer.write(encode_line(message))

    stop = partialmethod(_send, do="stop")  # ends the running answer where it is; the server is asked first
    abandon = partialmethod(_send, do="abandon")  # the same, without waiting for the server
    go_offline = partialmethod(_send, do="offline")
    go_online = partialmethod(_send, do="online")
    keep = partialmethod(_send, do="keep")  # has the newest answer be again what a server has corrected of it
    write_standalone = partialmethod(_send, do="standalone")  # continues without the server, however unlikely the text

    def ask(self, question: str, options: AnswerOptions) -> None:
        """Asks; after the answers that are still running."""
        asked = {name: value for name, value in options.fields().items() if name in OPTIONS}
        self._send(do="ask", question=question, options=asked)

    def continue_answer(self, max_tokens: int) -> None:
        """Continues the newest answer by at most so many tokens, 0: as the context allows; as if it had never ended."""
        self._send(do="continue", max_tokens=max_tokens)

    def permit(self, call: str, permission: events.Permission) -> None:
        self._send(do="permit", call=call, permission=permission.value)

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers; 0: begins again."""
        self._send(do="rewind", answers=answers)

    def set_title(self, title: str) -> None:
        self._send(do="title", title=title)

    def choose_model(self, name: str | None) -> None:
        """Has the model of a name answer from the next question on; None: asks which there are."""
        self._send(do="model", model=name)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _next(self) -> Update:
        gone: MoaError = GONE
        try:
            message = json.loads(await self._reader.readuntil())
            if message["event"] == "error":
                return Update(events.Failed(error_of(message), taken_back=True))
            update = update_of(message)
            if isinstance(update.event, events.ModelsChanged):
                self._facts, self.model = made_of(ConversationFacts, message), update.event.model
            self._note(update)
            return update
        except (OSError, asyncio.IncompleteReadError):
            pass
        except BaseException as error:  # noqa: BLE001 (what is no message of this version's)
            gone = told(error, "Reading what the daemon says")
        self.is_gone = True
        return Update(events.Failed(gone, taken_back=True))

    def _note(self, update: Update) -> None:
        if update.status is not None:
            self.status = update.status
        match update.event:
            case events.Titled(title):
                self._facts = replace(self._facts, title=title)
            case events.DrafterChanged(drafter, reason, standalone):
                self._facts = replace(self._facts, drafter=drafter, drafter_reason=reason, standalone=standalone)
            case events.ExecutionChanged(level, exact):
                self._facts = replace(self._facts, level=level, exact=exact)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]  # of a connection


async def connect(path: Path) -> Ends:
    """To the daemon that listens on a socket; OSError: none does."""
    return await asyncio.open_unix_connection(path, limit=MOST_MESSAGE_BYTES)


async def open_conversation(
    ends: Ends, identifier: str | None, system: str | None, *, single: bool = False
) -> OpenConversation:
    """Opens a conversation, or with None a new one, with a system prompt; `single`: for one answer, and not kept."""
    try:
        message = {"do": "open", "conversation": identifier, "system": system, "single": single}
        return OpenConversation(*ends, await exchange(ends, message))
    except BaseException:
        ends[1].close()
        raise


async def exchange(ends: Ends, message: Mapping[str, Any]) -> Fields:
    """Sends a message, and reads its answer; raises what that says."""
    reader, writer = ends
    writer.write(encode_line(message))
    try:
        answer: Fields = json.loads(await reader.readuntil())
    except (OSError, asyncio.IncompleteReadError):
        raise GONE from None
    if answer.get("event") == "error":
        raise error_of(answer)
    return answer


async def request(path: Path, message: Mapping[str, Any], seconds: float) -> Fields:
    """One message about no conversation, and its answer; OSError: no daemon listens there, or answers in time."""
    async with turns(seconds):
        ends = await connect(path)
        try:
            return await exchange(ends, message)
        finally:
            ends[1].close()
