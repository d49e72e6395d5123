"""A conversation of the daemon, as a surface in another process has it open.

State: the socket, and what the daemon has said last. A daemon that goes away ends the running answer with an error;
the conversation is opened again by its identifier with the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

from moa_shared.errors import MoaError, UnavailableError

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.failures import told
from moa_client.surface.messages import decode_line, encode_line, error_of, made_of, update_of
from moa_client.surface.open_conversation import ConversationFacts, Subscription

MOST_MESSAGE_BYTES = 1 << 28  # from the daemon, which is trusted: a long conversation in one `opened`
GONE = UnavailableError("The daemon has ended.", hint="Ask again: it is started again, and the conversation is kept.")


class RemoteConversation:
    """An open conversation; see `OpenConversation`. `opened`: the daemon's message that it is open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opened: Mapping[str, Any]) -> None:
        self._writer = writer
        self._facts = made_of(ConversationFacts, opened)
        self.status: LinkStatus = made_of(LinkStatus, opened["status"])
        self.answers: Sequence[AnswerText] = [made_of(AnswerText, answer) for answer in opened["answers"]]
        self._subscription = Subscription()
        self._stats: asyncio.Queue[str] = asyncio.Queue()
        self._is_leaving = False
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def facts(self) -> ConversationFacts:
        status = self.status
        return replace(self._facts, server=status.server, online=status.state is not events.LinkState.OFFLINE)

    @property
    def is_gone(self) -> bool:
        return self._reading.done()

    def updates(self) -> AsyncIterator[Update]:
        return self._subscription.updates()

    def _send(self, **message: Any) -> None:
        if self._reading.done():
            raise GONE
        self._writer.write(encode_line(message))

    stop = partialmethod(_send, do="stop")
    abandon = partialmethod(_send, do="abandon")
    go_offline = partialmethod(_send, do="offline")
    go_online = partialmethod(_send, do="online")
    write_standalone = partialmethod(_send, do="standalone")
    keep = partialmethod(_send, do="keep")

    def ask(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        self._send(do="ask", question=question, options=options.fields(), instead_of=instead_of)

    def continue_answer(self, max_tokens: int) -> None:
        self._send(do="continue", max_tokens=max_tokens)

    def permit(self, call: str, permission: events.Permission) -> None:
        self._send(do="permit", call=call, permission=permission.value)

    def rewind(self, answers: int) -> None:
        self._send(do="rewind", answers=answers)

    def set_system(self, system: str | None) -> None:
        self._facts = replace(self._facts, system=system)
        self._send(do="system", system=system)

    def set_title(self, title: str) -> None:
        self._send(do="title", title=title)

    async def stats(self) -> str:
        self._send(do="stats")
        waiting = asyncio.ensure_future(self._stats.get())
        await asyncio.wait((waiting, self._reading), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            raise GONE
        return waiting.result()

    async def close(self) -> None:
        self._is_leaving = True
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._subscription.close()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        gone: MoaError = GONE
        try:
            while True:
                self._on_message(decode_line(await reader.readuntil()))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except BaseException as error:  # noqa: BLE001 (what is no message of this version's)
            gone = told(error, "Reading what the daemon says")
        if not self._is_leaving:
            self._subscription.push_update(Update(events.Failed(gone, taken_back=True)))

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message["event"]:
            case "stats":
                self._stats.put_nowait(str(message["lines"]))
            case "error":
                self._subscription.push_update(Update(events.Failed(error_of(message), taken_back=True)))
            case _:
                update = update_of(message)
                self._note(update)
                self._subscription.push_update(update)

    def _note(self, update: Update) -> None:
        if update.status is not None:
            self.status = update.status
        match update.event:
            case events.Titled(title):
                self._facts = replace(self._facts, title=title)
            case events.DrafterChanged() as drafter:
                self._facts = replace(
                    self._facts, drafter=drafter.name, drafter_reason=drafter.reason, standalone=drafter.standalone
                )
            case events.ExecutionChanged() as execution:
                self._facts = replace(self._facts, level=execution.level, exact=execution.exact)


async def open_remote(
    path: Path, conversation: str | None, system: str | None, *, single: bool = False
) -> RemoteConversation:
    """Opens a conversation of the daemon that listens on a socket.

    Args:
        conversation: its identifier; None: a new one.
        system: the system prompt of a new one; None: the model's own.
        single: it is for one answer, and not kept.

    Raises:
        OSError: none listens there.
        MoaError: it refuses.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=MOST_MESSAGE_BYTES)
    try:
        message = {"do": "open", "conversation": conversation, "system": system, "single": single}
        opened = await exchange(reader, writer, message)
    except BaseException:
        writer.close()
        raise
    return RemoteConversation(reader, writer, opened)


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: Mapping[str, Any]
) -> Mapping[str, Any]:
    writer.write(encode_line(message))
    try:
        answer = decode_line(await reader.readuntil())
    except (OSError, asyncio.IncompleteReadError):
        raise GONE from None
    if answer.get("event") == "error":
        raise error_of(answer)
    return answer


async def request(path: Path, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    """One message about no conversation, and its answer.

    Raises:
        OSError: no daemon listens there; TimeoutError: it does not answer.
        MoaError: it refuses.
    """
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_unix_connection(path, limit=MOST_MESSAGE_BYTES)
        try:
            return await exchange(reader, writer, message)
        finally:
            writer.close()
