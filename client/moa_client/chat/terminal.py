"""The interactive terminal: reading questions with history, multi-line input and Ctrl-C, over prompt_toolkit."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from moa_client.chat.chat import Chat
from moa_client.chat.keys import quiet_keys

QUOTES = '"""'


def key_bindings() -> KeyBindings:
    """Alt-Enter inserts a new line; Enter sends."""
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class Lines:
    """Joins lines that belong together. Pure."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._block = False

    @property
    def unfinished(self) -> bool:
        return bool(self._parts) or self._block

    def push(self, line: str) -> str | None:
        """Adds a typed line; returns the whole question once it is complete."""
        if self._block:
            if line.rstrip().endswith(QUOTES):
                self._parts.append(line.rstrip().removesuffix(QUOTES))
                return self._take()
            self._parts.append(line)
            return None
        if not self._parts and line.lstrip().startswith(QUOTES):
            rest = line.lstrip().removeprefix(QUOTES)
            if rest.rstrip().endswith(QUOTES):
                return rest.rstrip().removesuffix(QUOTES)
            self._block = True
            if rest:
                self._parts.append(rest)
            return None
        if line.endswith("\\"):
            self._parts.append(line[:-1])
            return None
        self._parts.append(line)
        return self._take()

    def clear(self) -> None:
        self._parts, self._block = [], False

    def _take(self) -> str:
        text = "\n".join(self._parts).strip("\n")
        self.clear()
        return text


async def converse(chat: Chat) -> None:
    """Reads questions and shows answers until the user leaves."""
    chat.greet()
    # An answer may be piped out while questions are typed: then the prompt belongs on standard error.
    session: PromptSession[str] = PromptSession(
        key_bindings=key_bindings(),
        output=create_output(always_prefer_tty=True),
        bottom_toolbar=lambda: chat.status,
        style=Style.from_dict({"bottom-toolbar": "noreverse"}),
    )
    lines = Lines()
    while True:
        try:
            line = await _prompt(chat, session, "... " if lines.unfinished else "> ")
        except KeyboardInterrupt:
            lines.clear()
            continue
        except EOFError:
            return
        question = lines.push(line)
        if question is None:
            continue
        with quiet_keys(chat.engine.write_alone):
            if not await chat.on_line(question):
                return


async def _prompt(chat: Chat, session: PromptSession[str], mark: str) -> str:
    """Reads a line from the user; changes of the link are reported above it."""

    async def attend() -> None:
        async with aclosing(chat.attend()) as happenings:
            async for _ in happenings:
                session.app.invalidate()

    with patch_stdout():
        attending = asyncio.ensure_future(attend())
        try:
            return await session.prompt_async(mark)
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)
