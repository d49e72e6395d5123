"""Serves surfaces: what one asks acts on the conversation that it has open, and the updates of that go back to it.

Over a socket, where a message is one line of JSON, or a WebSocket (`page`). State: who is connected. Invariants: a
message that cannot be followed is answered by `error`, and changes nothing; who does not read holds up only itself.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, OverloadedError

from moa_client.conversation.answer_text import AnswerText, Corrections, Update, apply_update
from moa_client.conversation.events import Asked, ModelsChanged, Permission
from moa_client.host.text_conversation import TextConversation
from moa_client.logs import told
from moa_client.surface.conversation import MOST_MESSAGE_BYTES, Ends, Subscription
from moa_client.surface.messages import (
    MOST_QUESTION_BYTES,
    Fields,
    decode_request,
    encode_line,
    error_fields,
    fields_of,
    object_of,
    opened_fields,
    options_of,
    shortened,
)

MOST_NUMBER = 1 << 31
MOST_TITLE = 200  # characters
WRITE_SECONDS = 60.0  # a program that takes nothing in for so long is left
LEAVE_SECONDS = 5.0
GONE = (OSError, TimeoutError)  # of a surface that has left, or takes nothing in
log = logging.getLogger(__name__)


class Watch:
    """A conversation as one surface has it open, until it leaves; `leave`: called then."""

    def __init__(
        self, conversation: TextConversation, leave: Callable[[TextConversation], Awaitable[None]] | None = None
    ) -> None:
        self.conversation = conversation
        self.answers: Sequence[AnswerText] = [copy(text) for text in conversation.publisher.answers]  # before updates
        self._leave = leave
        self._subscription = Subscription()
        for event in conversation.calls.open_events:
            self._subscription.push_update(Update(event, len(self.answers)))
        conversation.publisher.subscriptions.append(self._subscription)
        self.updates = self._subscription.updates

    async def close(self) -> None:
        if self._subscription in self.conversation.publisher.subscriptions:
            self.conversation.publisher.subscriptions.remove(self._subscription)
            self._subscription.close()
            if self._leave is not None:
                await self._leave(self.conversation)


Send = Callable[[Fields], Awaitable[None]]
Open = Callable[[str | None, str | None, bool], Awaitable[Watch]]  # of an identifier, a system prompt, for one answer
Control = Callable[[Fields], Awaitable[Fields]]


async def only_opens(message: Fields) -> Fields:
    raise DataError("The first message must open a conversation.", hint="docs/device.md has the messages.")


async def serve_surface(
    messages: AsyncIterator[Fields], send: Send, open_it: Open, control: Control = only_opens
) -> None:
    """Serves a surface until it leaves; `control` answers what comes before it opens a conversation.

    `send` waits as long as the surface takes nothing in.
    """
    async for message in messages:
        try:
            if message.get("do") == "open":
                await _serve(message, messages, send, open_it)
                return
            await send(await control(message))
        except GONE:
            raise
        except BaseException as error:  # noqa: BLE001 (a defect, too, is told)
            await send(error_fields(told(error, "What was asked for")))


async def _serve(first: Fields, messages: AsyncIterator[Fields], send: Send, open_it: Open) -> None:
    identifier, system = _text_or_none(first, "conversation"), _text_or_none(first, "system")
    watch = await open_it(identifier, system, first.get("single") is True)
    try:
        await send(opened_fields(watch.conversation.facts, watch.conversation.engine.status, watch.answers))
        both = _follow_all(messages, watch.conversation, send), _send_updates(watch, send)
        ways = [asyncio.create_task(way) for way in both]  # without one of them, a surface would wait for ever
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            outcomes = await asyncio.gather(*ways, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
    finally:
        await watch.close()


async def _follow_all(messages: AsyncIterator[Fields], conversation: TextConversation, send: Send) -> None:
    async for message in messages:
        try:
            _follow(message, conversation)
        except BaseException as error:  # noqa: BLE001 (a defect, too, is told, and the surface goes on)
            await send(error_fields(told(error, "What was asked for")))


async def _send_updates(watch: Watch, send: Send) -> None:
    answers, corrections = list(watch.answers), dict[int, Corrections]()

    def corrected(text: AnswerText) -> Fields:
        """Where text replaces what this surface was shown, if that is news."""
        known = corrections.setdefault(text.number, Corrections())
        is_new = known.update(text.committed[known.length :], text.provisional)
        return {"corrected": known.stretches} if is_new else {}

    for text in answers:
        corrected(text)
    try:
        async for update in watch.updates():
            if isinstance(update.event, Asked):
                corrections.pop(update.answer, None)
            about = apply_update(answers, update)
            facts = object_of(watch.conversation.facts) if isinstance(update.event, ModelsChanged) else {}
            await send(fields_of(update) | facts | (corrected(about) if about is not None else {}))
    except OverloadedError as error:  # it lags: it must open the conversation again
        await send(error_fields(error))


def _follow(message: Mapping[str, Any], conversation: TextConversation) -> None:
    name = message.get("do")
    follow = _DO.get(name) if isinstance(name, str) else None
    if follow is None:
        raise DataError(
            f"There is nothing to do that is called {shortened(name)}.", hint="docs/device.md has the messages."
        )
    follow(conversation, message)


def _ask(conversation: TextConversation, message: Mapping[str, Any]) -> None:
    question, options = message.get("question"), message.get("options", {})
    if not isinstance(question, str) or not question.strip():
        raise DataError("The question is empty.", hint="Give it as the text `question`.")
    if not isinstance(options, dict):
        raise DataError("The options are no JSON object.", hint="docs/device.md lists them.")
    conversation.task.ask(question, options_of(options), _number(message, "instead_of"))


def _permit(conversation: TextConversation, message: Mapping[str, Any]) -> None:
    call, word = message.get("call"), message.get("permission")
    if not isinstance(call, str) or word not in [each.value for each in Permission]:
        raise DataError(
            "`permit` needs the text `call`, and as `permission` one of once, always and denied.",
            hint="docs/device.md has the messages.",
        )
    conversation.calls.permit(call, Permission(word))


def _number(message: Mapping[str, Any], name: str, default: int | None = 0) -> int:
    value = message.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST_NUMBER:
        raise DataError(f"`{name}` must be a number from 0 on.", hint="docs/device.md has the messages.")
    return value


def _text_or_none(message: Mapping[str, Any], name: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"`{name}` must be text or null.", hint="docs/device.md has the messages.")
    return value


_DO: Mapping[str, Callable[[TextConversation, Mapping[str, Any]], None]] = {
    "ask": _ask,
    "continue": lambda of, message: of.task.continue_answer(_number(message, "max_tokens")),
    "stop": lambda of, message: of.task.stop(),
    "abandon": lambda of, message: of.task.stop(at_once=True),
    "permit": _permit,
    "offline": lambda of, message: of.engine.go_offline(),
    "online": lambda of, message: of.engine.go_online(),
    "standalone": lambda of, message: of.engine.write_standalone(),
    "keep": lambda of, message: of.task.keep(),
    "rewind": lambda of, message: of.task.rewind(_number(message, "answers", None)),
    "model": lambda of, message: of.choose_model(_text_or_none(message, "model")),
    "system": lambda of, message: of.set_system(_text_or_none(message, "system")),
    "title": lambda of, message: of.set_title((_text_or_none(message, "title") or "")[:MOST_TITLE]),
}


class SocketServer:
    """Serves our own programs: one conversation a connection. `control` answers what is about no conversation."""

    def __init__(self, open_it: Open, control: Control = only_opens) -> None:
        self._open = open_it
        self._control = control
        self._listening: asyncio.Server | None = None
        self._path: Path | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def listen(self, path: Path) -> None:
        """Begins to listen on a socket, in the place of a stale one; only this user can connect."""
        self._path = path
        path.unlink(missing_ok=True)  # noqa: ASYNC240 (at once)
        before = os.umask(0o177)
        try:
            self._listening = await asyncio.start_unix_server(self._accept, path, limit=MOST_QUESTION_BYTES)
        finally:
            os.umask(before)

    async def connect(self) -> Ends:
        """The end of a connection from this process."""
        ours, its = socket.socketpair()
        self._accept(*await asyncio.open_connection(sock=ours, limit=MOST_MESSAGE_BYTES))
        return await asyncio.open_connection(sock=its, limit=MOST_MESSAGE_BYTES)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for writer in self._connections.values():
            writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):  # then they are cancelled
                await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(fields: Fields) -> None:
            writer.write(encode_line(fields))
            async with asyncio.timeout(WRITE_SECONDS):
                await writer.drain()

        try:
            await serve_surface(_read(reader, send), send, self._open, self._control)
        except GONE:
            log.info("a program has left")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, send: Send) -> AsyncIterator[Fields]:
    """The messages of a program, until it leaves; one that is too long is the last."""
    while True:
        try:
            line = await reader.readuntil()
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            error = DataError(f"A message has more than {MOST_QUESTION_BYTES} bytes.", hint="Ask a shorter question.")
            await send(error_fields(error))
            return
        try:
            yield decode_request(line)
        except DataError as error:
            await send(error_fields(error))
