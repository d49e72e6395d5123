"""Serves one surface, over a socket or a WebSocket: its messages act on the conversation that it has open, and the
updates of that conversation go back.

State: the open conversation. Invariant: a message that cannot be followed is answered by `error`, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from moa_shared.errors import DataError, OverloadedError

from moa_client.conversation.answer_text import AnswerText, Corrections, Update, apply_update
from moa_client.conversation.events import Asked, Permission
from moa_client.failures import told
from moa_client.surface.messages import Fields, error_fields, fields_of, opened_fields, options_of, shortened
from moa_client.surface.open_conversation import OpenConversation

Send = Callable[[Fields], Awaitable[None]]
Open = Callable[[str | None, str | None, bool], Awaitable[OpenConversation]]
MOST_NUMBER = 1 << 31
MOST_TITLE = 200  # characters
GONE = (OSError, TimeoutError)  # of a surface that has left, or takes nothing in


async def serve_surface(first: Mapping[str, Any], messages: AsyncIterator[Fields], send: Send, open_it: Open) -> None:
    """Serves a surface until it leaves.

    Args:
        first: its `open` message; `messages`: those after it.
        send: waits as long as the surface takes nothing in.
        open_it: opens the conversation of an identifier (None: a new one) with a system prompt; for one answer or more.
    """
    identifier, system = _text_or_none(first, "conversation"), _text_or_none(first, "system")
    with_runs = first.get("runs") is True
    conversation = await open_it(identifier, system, first.get("single") is True)
    try:
        opened = opened_fields(conversation.facts, conversation.status, conversation.answers, with_runs=with_runs)
        await send(opened)
        ways = [
            asyncio.create_task(_follow_all(messages, conversation, send)),
            # Without this one, a surface would wait for ever.
            asyncio.create_task(_send_updates(conversation, send, with_runs=with_runs)),
        ]
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
        await conversation.close()


async def _follow_all(messages: AsyncIterator[Fields], conversation: OpenConversation, send: Send) -> None:
    async for message in messages:
        try:
            await _follow(message, conversation, send)
        except GONE:
            raise
        except BaseException as error:  # noqa: BLE001 (a defect, too, is told, and the surface goes on)
            await send(error_fields(told(error, "What was asked for")))


async def _send_updates(conversation: OpenConversation, send: Send, *, with_runs: bool) -> None:
    looks = _Looks(conversation.answers)
    try:
        async for update in conversation.updates():
            corrected = looks.corrected(update) if with_runs else {}
            await send(fields_of(update, with_runs=with_runs) | corrected)
    except OverloadedError as error:  # it lags: it must open the conversation again
        await send(error_fields(error))


class _Looks:
    """The answers of a conversation as a surface shows them, and what of them was corrected."""

    def __init__(self, answers: Sequence[AnswerText]) -> None:
        self._answers = list(answers)
        self._corrections: dict[int, Corrections] = {}
        for text in answers:
            self._corrected(text)

    def corrected(self, update: Update) -> Fields:
        if isinstance(update.event, Asked):
            self._corrections.pop(update.answer, None)
        text = apply_update(self._answers, update)
        return {} if text is None else self._corrected(text)

    def _corrected(self, text: AnswerText) -> Fields:
        corrections = self._corrections.setdefault(text.number, Corrections())
        is_new = corrections.update(text.committed[corrections.length :], text.provisional)
        return {"corrected": corrections.stretches} if is_new else {}


async def _follow(message: Mapping[str, Any], conversation: OpenConversation, send: Send) -> None:
    match message.get("do"):
        case "ask":
            question, options = message.get("question"), message.get("options", {})
            if not isinstance(question, str) or not question.strip():
                raise DataError("The question is empty.", hint="Give it as the text `question`.")
            if not isinstance(options, dict):
                raise DataError("The options are no JSON object.", hint="docs/device.md lists them.")
            conversation.ask(question, options_of(options), _number(message, "instead_of"))
        case "continue":
            conversation.continue_answer(_number(message, "max_tokens"))
        case "stop":
            conversation.stop()
        case "abandon":
            conversation.abandon()
        case "permit":
            call, word = message.get("call"), message.get("permission")
            if not isinstance(call, str) or word not in [each.value for each in Permission]:
                raise DataError(
                    "`permit` needs the text `call`, and as `permission` one of once, always and denied.",
                    hint="docs/device.md has the messages.",
                )
            conversation.permit(call, Permission(word))
        case "offline":
            conversation.go_offline()
        case "online":
            conversation.go_online()
        case "standalone":
            conversation.write_standalone()
        case "rewind":
            conversation.rewind(_number(message, "answers", None))
        case "system":
            conversation.set_system(_text_or_none(message, "system"))
        case "title":
            conversation.set_title((_text_or_none(message, "title") or "")[:MOST_TITLE])
        case "stats":
            await send({"event": "stats", "lines": await conversation.stats()})
        case other:
            raise DataError(
                f"There is nothing to do that is called {shortened(other)}.", hint="docs/device.md has the messages."
            )


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
